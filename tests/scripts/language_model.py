"""A language model trained by the Trainer of transformers, as in its example scripts.

It starts from random weights and trains on random tokens. Does not use tdcore.
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self):
        self.rows = torch.randint(0, 32, (32, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class PrintExactly(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        values = {key: logs[key].hex() for key in ("loss", "grad_norm", "eval_loss") if key in logs}
        print(state.global_step, values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--save", type=int)
    parser.add_argument("--resume")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps" if options.save else "no",
        save_steps=options.save or 500,
        report_to=[],
        use_cpu=True,
        seed=7,
        disable_tqdm=True,
    )
    set_seed(arguments.seed)
    sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    trainer = Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())
    trainer.add_callback(PrintExactly())
    trainer.train(resume_from_checkpoint=options.resume)
    print({key: value.hex() for key, value in trainer.evaluate().items() if key == "eval_loss"})


if __name__ == "__main__":
    main()
