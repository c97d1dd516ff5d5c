// Prometheus' text, as far as the page needs it: one line to a name, its labels and a value.

const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

export function parseLine(line) {
  const brace = line.indexOf("{");
  const end = line.lastIndexOf("}");
  const labels = {};
  for (const [, name, value] of line.slice(brace + 1, end).matchAll(LABEL)) labels[name] = value.replace(/\\[n"\\]/g, (one) => ESCAPED[one]);
  return { name: line.slice(0, brace), labels, value: Number(line.slice(end + 1)) };
}

/** The text of a label as it stands in a line. */
export const labelText = (name, value) => `${name}="${value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll('"', '\\"')}"`;
