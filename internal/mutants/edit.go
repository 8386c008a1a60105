package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// span is a part of a file and its replacement.
type span struct {
	file       *file
	begin, end int
	text       string
	sql        bool // the replaced text is SQL
}

// apply returns the files that m changes, with their new text, by absolute name. If possible,
// unchanged code stays in its line, because importers of a package know the lines of its
// declarations.
func (s *source) apply(m mutant) (map[string]string, error) {
	spans := map[*file][]span{}
	for _, e := range m.edits {
		found, err := s.find(e)
		if err != nil {
			return nil, err
		}
		spans[found.file] = append(spans[found.file], found)
	}
	changed := map[string]string{}
	for f, list := range spans {
		slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
		var text strings.Builder
		at, missing := 0, 0 // at is an offset; missing counts lines that the new text lacks so far
		keep := func(rest string) {
			if line, below, has := strings.Cut(rest, "\n"); has && missing > 0 {
				rest, missing = line+strings.Repeat("\n", missing+1)+below, 0
			}
			text.WriteString(rest)
		}
		for _, p := range list {
			if p.begin < at {
				return nil, fmt.Errorf("two edits change %s", f.line(p.begin))
			}
			if !p.sql {
				p.text = oneLine(p.text)
			}
			keep(f.text[at:p.begin])
			text.WriteString(p.text)
			missing += strings.Count(f.text[p.begin:p.end], "\n") - strings.Count(p.text, "\n")
			at = p.end
		}
		keep(f.text[at:])
		mended, err := s.mendImports(f, text.String())
		if err != nil {
			return nil, err
		}
		changed[filepath.Join(s.root, filepath.FromSlash(f.path))] = mended
	}
	return changed, nil
}

// oneLine writes Go in as few lines as possible.
func oneLine(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	f := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(f, []byte(text), nil, 0)
	var line strings.Builder
	for {
		pos, tok, lit := s.Scan()
		switch {
		case tok == token.EOF, lit == "\n" && f.Offset(pos) == len(text):
			return line.String()
		case tok == token.SEMICOLON, lit == "":
			lit = tok.String()
		}
		line.WriteString(lit + " ")
	}
}

// find returns the only place of e. If there is no place, or more than one, the error says where to
// look.
func (s *source) find(e edit) (span, error) {
	old := split(e.old, 0, false)
	if len(old) == 0 {
		return span{}, fmt.Errorf("an edit of %s names no text", e.in)
	}
	decls := s.decls[e.in]
	var found []span
	for _, d := range decls {
		for i := range d.words {
			if n := match(d.words[i:], old); n > 0 {
				found = append(found, span{d.file, d.words[i].begin, d.words[i+n-1].end, e.new, d.words[i].sql})
			}
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var lines strings.Builder
		for _, p := range found {
			lines.WriteString("\n\t" + p.file.line(p.begin))
		}
		return span{}, fmt.Errorf("%s holds this text %d times, not once; make the text longer:\n\t%s\nIt is in%s",
			e.in, len(found), e.old, lines.String())
	case len(decls) == 0:
		return span{}, fmt.Errorf("there is no declaration %s; its text was:\n\t%s", e.in, e.old)
	}
	return span{}, fmt.Errorf("%s does not hold this text:\n\t%s", e.in, e.old)
}

// match returns how many of words, from the first on, match old. It returns 0 if they do not match.
// An ellipsis matches as few words as possible.
func match(words, old []word) int {
	for i, w := range old {
		if w.text == "…" {
			for j := i; j < len(words); j++ {
				if n := match(words[j:], old[i+1:]); n > 0 {
					return j + n
				}
			}
			return 0
		}
		if i == len(words) || words[i].text != w.text {
			return 0
		}
	}
	return len(old)
}

// packageOf returns the directory of a declaration's package.
func packageOf(decl string) string {
	if strings.HasSuffix(decl, ".sql") {
		return path.Dir(decl)
	}
	slash := strings.LastIndex(decl, "/") + 1
	name, _, _ := strings.Cut(decl[slash:], ".")
	return decl[:slash] + name
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
