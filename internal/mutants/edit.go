package main

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/imports"
)

// span is a part of a file and its replacement.
type span struct {
	file       *file
	begin, end int
	text       string
}

// applyAll calls apply for each mutant of list. The error names all mutants that do not fit.
func (s *source) applyAll(list []mutant) ([]map[string]string, error) {
	var all []map[string]string
	var problems []error
	for _, m := range list {
		changed, err := s.apply(m)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.name, err))
		}
		all = append(all, changed)
	}
	return all, errors.Join(problems...)
}

// apply returns the files that m changes, with their new text, by absolute name.
func (s *source) apply(m mutant) (map[string]string, error) {
	var spans []span
	for _, e := range m.edits {
		found, err := s.find(e)
		if err != nil {
			return nil, err
		}
		spans = append(spans, found)
	}
	// From the end of a file, so that the earlier offsets stay valid.
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(b.begin, a.begin) })
	texts, begun := map[*file]string{}, map[*file]int{}
	for _, p := range spans {
		text, again := texts[p.file]
		if !again {
			text = p.file.text
		} else if p.end > begun[p.file] {
			return nil, fmt.Errorf("two edits change %s", p.file.line(p.begin))
		}
		texts[p.file], begun[p.file] = text[:p.begin]+p.text+text[p.end:], p.begin
	}
	changed := map[string]string{}
	for f, text := range texts {
		name := s.absolute(f.path)
		changed[name] = text
		if path.Ext(name) == ".go" { // adapt its imports
			mended, err := imports.Process(name, []byte(text), nil)
			if err != nil {
				return nil, err
			}
			changed[name] = string(mended)
		}
	}
	return changed, nil
}

// find returns the only place of e. If there is no place, or more than one, the error says where to
// look.
func (s *source) find(e edit) (span, error) {
	if strings.TrimSpace(e.old) == "" {
		return span{}, fmt.Errorf("an edit of %s names no text", e.in)
	}
	old, decls := pattern(e.old), s.decls[e.in]
	var found []span
	var places strings.Builder
	for _, d := range decls {
		for at := d.begin; ; {
			place := old.FindStringIndex(d.file.code[at:d.end])
			if place == nil {
				break
			}
			p := span{file: d.file, begin: at + place[0], end: at + place[1]}
			p.text = strings.ReplaceAll(e.new, "…", d.file.text[p.begin:p.end])
			found, at = append(found, p), p.begin+1
			places.WriteString("\n\t" + d.file.line(p.begin))
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return span{}, fmt.Errorf("%s holds this text %d times, not once; make the text longer:\n\t%s\nIt is in%s",
			e.in, len(found), e.old, places.String())
	case len(decls) == 0:
		return span{}, fmt.Errorf("there is no declaration %s; its text was:\n\t%s", e.in, e.old)
	}
	return span{}, fmt.Errorf("%s does not hold this text:\n\t%s", e.in, e.old)
}

// wordOrSign matches an identifier, a number, or one other character. $1 is one word.
var wordOrSign = regexp.MustCompile(`[\w$]+|[^\w\s]`)

// pattern returns an expression that matches the words of a text, whatever is the space between
// them. An ellipsis matches as few words as possible.
func pattern(text string) *regexp.Regexp {
	const closing = ")]}"
	var parts []string
	words := wordOrSign.FindAllString(text, -1)
	for i, w := range words {
		switch part := regexp.QuoteMeta(w); {
		case w == "…":
			parts = append(parts, `.*?`)
		case w == "," && i+1 < len(words) && strings.Contains(closing, words[i+1]): // gofmt wants it at the end of a line
		case strings.Contains(closing, w):
			parts = append(parts, `(?:,\s*)?`+part)
		case w[0] == '$':
			parts = append(parts, part+`\b`)
		case wordOrSign.FindString(w+"x") != w: // a word
			parts = append(parts, `\b`+part+`\b`)
		default:
			parts = append(parts, part)
		}
	}
	return regexp.MustCompile(`(?s)` + strings.Join(parts, `\s*`))
}
