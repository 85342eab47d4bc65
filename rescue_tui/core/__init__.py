"""Pure decisions and values: no input or output, no asyncio, no Textual."""
