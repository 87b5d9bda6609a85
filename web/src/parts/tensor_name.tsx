/** Name of a tensor: the module faint, the rest plain; a link to its page. */
import { parts } from "../data/names.ts";
import { href, useApp } from "../state.ts";

export function TensorName({
  name,
  parameters = {},
}: {
  readonly name: string;
  readonly parameters?: Readonly<Record<string, string>>;
}) {
  const app = useApp();
  const { kind, module, leaf } = parts(name);
  const text = (
    <>
      <span class="muted">{kind}</span>
      <wbr />
      <span class="muted">{module}</span>
      <wbr />
      {leaf}
    </>
  );
  // A report contains some of the tensors.
  if (!app.source.has("tensor", { run: app.run, name })) return <span class="tensor-name plain">{text}</span>;
  return (
    <a class="tensor-name" href={href(app, "tensor", { name, ...parameters })} title={name}>
      {text}
    </a>
  );
}
