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
  return (
    <a class="tensor-name" href={href(app, "tensor", { name, ...parameters })} title={name}>
      <span class="muted">{kind}</span>
      <wbr />
      <span class="muted">{module}</span>
      <wbr />
      {leaf}
    </a>
  );
}
