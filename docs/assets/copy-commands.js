// The copy button of a console block takes the commands: without the prompt, and without what they print.
document.addEventListener("click", (event) => {
  const button = event.target.closest(".md-clipboard, .md-code__button");
  const block = button && button.closest(".language-console");
  if (!block || button.hasAttribute("data-clipboard-text")) return;
  const lines = block.querySelector("code").innerText.split("\n");
  const commands = [];
  let more = false; // a line that ends with a backslash goes on
  for (const line of lines) {
    const start = line.match(/^(?:\$|>>>) (.*)$/);
    if (!start && !more) continue;
    const text = start ? start[1] : line;
    commands.push(text.replace(/\s+# .*$/, ""));
    more = text.endsWith("\\");
  }
  if (commands.length) button.setAttribute("data-clipboard-text", commands.join("\n") + "\n");
}, true);
