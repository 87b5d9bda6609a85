/** Choice of one tensor among many: a field that completes names. */
import { useEffect, useState } from "preact/hooks";
import { useElementId } from "../state.ts";

interface Props {
  readonly value: string;
  readonly names: readonly string[];
  readonly onChange: (name: string) => void;
}

export function TensorChoice({ value, names, onChange }: Props) {
  const id = useElementId();
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  if (names.length < 2) return null;
  const submit = (next: string): void => {
    setText(next);
    if (next !== value && names.includes(next)) onChange(next);
  };
  return (
    <label class="choice tensor-choice">
      <span class="choice-label">Tensor</span>
      <input
        type="text"
        list={id}
        value={text}
        data-filter=""
        spellcheck={false}
        aria-invalid={!names.includes(text)}
        onFocus={(event) => event.currentTarget.select()}
        onInput={(event) => submit(event.currentTarget.value)}
        onBlur={() => !names.includes(text) && setText(value)}
      />
      <datalist id={id}>
        {names.map((name) => (
          <option value={name} key={name} />
        ))}
      </datalist>
    </label>
  );
}
