// Files for the reader: figures, tables, and the page itself.

import template from "../../src/normlens/viewer/static/page.html";

export function svgText(figure: SVGElement): string {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(figure)}\n`;
}

/** The same figure in pixels, at three times its size. */
export async function png(figure: SVGElement, density = 3): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(figure))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  const [width, height] = ["width", "height"].map((name) => Number(figure.getAttribute(name)));
  const scale = Math.min(density, 16000 / Math.max(width, height));
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("no picture was made")))),
  );
}

export type Row = (string | number)[];

export function csv(rows: Iterable<Row>): string {
  const lines: string[] = [];
  for (const row of rows) lines.push(row.map(csvCell).join(","));
  return `${lines.join("\n")}\n`;
}

function csvCell(value: string | number): string {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  // As in normlens.spreadsheet: a spreadsheet would run such a text as a formula.
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** The page as normlens.viewer.page.standalone writes it. */
export function standalone(parts: {
  title: string;
  state: string;
  payload: string;
  script: string;
}): string {
  const escaped = (text: string) =>
    text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
  // Inside a script element only these character sequences mean something to an HTML parser.
  const script = parts.script.replace(/<(?=\/script|!--)/gi, "<\\");
  const filled: [string, string][] = [
    ["title", escaped(parts.title)],
    ["state", escaped(parts.state)],
    ["payload", parts.payload],
    ["script", script],
  ];
  let page = template;
  for (const [name, text] of filled) {
    const mark = `{{${name}}}`;
    const at = page.indexOf(mark);
    page = page.slice(0, at) + text + page.slice(at + mark.length);
  }
  return page;
}

export function download(name: string, content: Blob | string, type = "text/plain"): void {
  const blob = typeof content === "string" ? new Blob([content], { type }) : content;
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
