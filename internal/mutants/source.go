package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// source is the text of the module without its tests. It is read once.
type source struct {
	root    string
	files   map[string]*file         // by path below root, with slashes
	decls   map[string][]declaration // by name: messages.Log.Send, migrations/000001_core.up.sql
	imports map[string]string        // paths by package name, as the module's files import them
}

// file is a Go or an SQL file.
type file struct {
	path   string
	text   string
	syntax *ast.File // nil for SQL
	words  []word
}

// declaration is the part of a file that declares one name.
type declaration struct {
	name  string
	file  *file
	words []word
}

// word is the unit of comparison: an identifier, a number, or one other character.
type word struct {
	text       string
	begin, end int  // offsets in the file
	sql        bool // the word is SQL
}

// readSource reads the Go and SQL files below root. It leaves out tests and this package.
func readSource(root string) (*source, error) {
	s := &source{root: root, files: map[string]*file{}, decls: map[string][]declaration{}}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch base := path.Base(rel); {
		case d.IsDir() && rel != "." && (base[0] == '.' || base[0] == '_' || base == "testdata" || rel == "internal/mutants"):
			return filepath.SkipDir
		case d.IsDir() || strings.HasSuffix(base, "_test.go"):
			return nil
		case strings.HasSuffix(base, ".go"), strings.HasSuffix(base, ".sql"):
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return s.add(rel, string(text))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.imports = s.importPaths()
	return s, nil
}

// add puts a file and its declarations into s.
func (s *source) add(name, text string) error {
	f := &file{path: name, text: text}
	s.files[name] = f
	if path.Ext(name) == ".sql" {
		f.words = split(text, 0, true)
		s.decls[name] = []declaration{{name, f, f.words}}
		return nil
	}
	fset := token.NewFileSet()
	var err error
	if f.syntax, err = parser.ParseFile(fset, name, text, 0); err != nil {
		return err
	}
	f.words = wordsOf(text)
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	declare := func(n string, node ast.Node) {
		n = path.Dir(name) + "." + n
		s.decls[n] = append(s.decls[n], declaration{n, f, between(f.words, offset(node.Pos()), offset(node.End()))})
	}
	for _, d := range f.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			declare(receiver(d)+d.Name.Name, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					declare(spec.Name.Name, spec)
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						declare(n.Name, spec)
					}
				}
			}
		}
	}
	return nil
}

// receiver returns the name of a method's type and a dot, without the star of a pointer.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	for t := d.Recv.List[0].Type; ; {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "."
		default:
			return ""
		}
	}
}

// wordsOf splits Go into words. It leaves out comments, also the comments of SQL in raw strings.
func wordsOf(text string) []word {
	fset := token.NewFileSet()
	f := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(f, []byte(text), nil, 0)
	var words []word
	for {
		pos, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return trimCommas(words)
		case tok == token.SEMICOLON && lit != ";": // the end of a line
			continue
		case lit == "":
			lit = tok.String()
		}
		words = append(words, split(lit, f.Offset(pos), strings.HasPrefix(lit, "`"))...)
	}
}

// split splits text, which begins at offset, into words. If text is SQL, split leaves out the
// comments.
func split(text string, offset int, sql bool) []word {
	var words []word
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		end := i + size
		switch {
		case unicode.IsSpace(r):
			i = end
			continue
		case sql && strings.HasPrefix(text[i:], "--"):
			line, _, _ := strings.Cut(text[i:], "\n")
			i += len(line)
			continue
		case inWord(r):
			end = len(text)
			if n := strings.IndexFunc(text[i:], func(r rune) bool { return !inWord(r) }); n >= 0 {
				end = i + n
			}
		}
		words = append(words, word{text[i:end], offset + i, offset + end, sql})
		i = end
	}
	return trimCommas(words)
}

// inWord reports whether r can be part of a word. $1 is one word.
func inWord(r rune) bool { return r == '_' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// trimCommas drops a comma before a closing bracket, which gofmt requires at the end of a line.
func trimCommas(words []word) []word {
	kept := words[:0]
	for i, w := range words {
		if w.text == "," && i+1 < len(words) && strings.Contains(")]}", words[i+1].text) {
			continue
		}
		kept = append(kept, w)
	}
	return kept
}

// between returns the words from one offset to another.
func between(words []word, begin, end int) []word {
	var found []word
	for _, w := range words {
		if w.begin >= begin && w.end <= end {
			found = append(found, w)
		}
	}
	return found
}

// line returns the place of an offset in the file, and the text of its line.
func (f *file) line(offset int) string {
	n := 1 + strings.Count(f.text[:offset], "\n")
	begin := 1 + strings.LastIndex(f.text[:offset], "\n")
	text, _, _ := strings.Cut(f.text[begin:], "\n")
	return fmt.Sprintf("%s:%d: %s", f.path, n, strings.TrimSpace(text))
}
