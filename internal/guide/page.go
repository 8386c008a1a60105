package main

import (
	"fmt"
	"regexp"
	"strings"
)

// block is a fenced block of a page.
type block struct {
	line     int    // where it begins in the page
	language string // sh, text, ts, …
	name     string // a terminal or a path, or empty
	shows    bool   // what comes in the terminal, not what is typed
	text     string // with a line end
	before   string // the text between it and the block before
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)(?: (\\S+))?( shows)?\n(.*?)^```$")

// blocksOf returns the blocks of a page.
func blocksOf(page string) (found []block) {
	end := 0
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return page[m[2*i]:m[2*i+1]]
		}
		found = append(found, block{
			line:     1 + strings.Count(page[:m[0]], "\n"),
			language: part(1),
			name:     part(2),
			shows:    part(3) != "",
			text:     part(4),
			before:   page[end:m[0]],
		})
		end = m[1]
	}
	return found
}

// expected returns what the comments of a command say comes.
func expected(command string) (texts []string) {
	for _, m := range regexp.MustCompile(`(?m)# → (.+)$`).FindAllStringSubmatch(command, -1) {
		texts = append(texts, m[1])
	}
	return texts
}

// lines returns the lines of a text that are not empty.
func lines(text string) (found []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			found = append(found, line)
		}
	}
	return found
}

// inOrder returns an error unless the texts come in the output one after the other.
func inOrder(output string, texts []string) error {
	for _, text := range texts {
		_, after, ok := strings.Cut(output, text)
		if !ok {
			return fmt.Errorf("no %q in what is left of the output", text)
		}
		output = after
	}
	return nil
}
