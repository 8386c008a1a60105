package main

import "strings"

// example writes the call that a test runs, and what it is answered.
func (p *page) example(m *method, c call) {
	p.p("After the [preparation](README.md#preparation):\n\n```bash")
	if c.prepare != "" {
		p.p("%s", c.prepare)
	}
	if c.command != "" {
		p.p("%s\n```\n\n```text\n%s\n```\n", c.command, c.answer)
		return
	}
	p.p("%s\n```\n\n```json\n%s\n```\n", c.curl(m), c.answer)
}

// curl is the command that calls the method.
func (c call) curl(m *method) string {
	bearer := c.bearer
	if bearer == "alice" || bearer == "bob" {
		bearer = "$(token $" + bearer + " " + lastSegment(m.nsid) + ")"
	}
	words := []string{"curl -sS"}
	if m.params != nil {
		words = append(words, "-G")
	}
	if m.kind == "Procedure" && m.input == nil {
		words = append(words, "-X POST")
	}
	words = append(words, `"$mlsd/xrpc/`+m.nsid+`"`, `-H "Authorization: Bearer `+bearer+`"`)
	for _, param := range strings.Fields(c.params) {
		words = append(words, "-d "+param)
	}
	command := strings.Join(words, " ")
	if m.input == nil {
		return command
	}
	body := " -d '{}'"
	if c.input != "" {
		body = " -d @- <<END\n{\n  " + strings.ReplaceAll(c.input, "\n", "\n  ") + "\n}\nEND"
	}
	return command + " \\\n  -H 'Content-Type: application/json'" + body
}
