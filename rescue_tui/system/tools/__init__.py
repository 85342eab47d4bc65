"""One module a tool: builds its argv, runs it through the Runner, hands its output to a parser in core.tooltext."""
