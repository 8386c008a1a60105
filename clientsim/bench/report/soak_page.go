package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed soak.html
var soakText string

var soakPage = parsePage(soakText)

// WriteHTML writes the run as one page without scripts and without links to other files.
func (s *Soak) WriteHTML(w io.Writer) error {
	view := struct {
		*Soak
		When, Length, VerdictText string
		Growths                   []Growth
		Pictures                  []template.HTML
	}{
		Soak: s, When: s.Began.UTC().Format(time.DateTime + " MST"), Length: s.length().Round(time.Second).String(), VerdictText: s.verdict(),
		Growths: s.Growths(),
	}
	for _, p := range s.smalls() {
		view.Pictures = append(view.Pictures, p.draw(s).done(p.title))
	}
	return soakPage.Execute(w, view)
}

// WriteSVG writes all pictures as one, with its own style, light or dark.
func (s *Soak) WriteSVG(w io.Writer) error {
	var all []*drawing
	for _, p := range s.smalls() {
		all = append(all, p.draw(s))
	}
	return writeSmalls(w, all, "a soak run, measure by measure")
}

// writeSmalls writes small pictures as one, with its own style.
func writeSmalls(w io.Writer, all []*drawing, label string) error {
	const columns, gap = 2, 20
	rows := (len(all) + columns - 1) / columns
	d := &drawing{width: columns*smallWidth + (columns+1)*gap, height: float64(rows)*(smallHeight+gap) + gap}
	d.rect("paper", 0, 0, d.width, d.height, "")
	for i, p := range all {
		d.place(p, gap+float64(i%columns)*(smallWidth+gap), gap+float64(i/columns)*(smallHeight+gap))
	}
	_, err := io.WriteString(w, string(d.doneWith("<style>"+styleText+".paper { fill: var(--paper) }</style>", label)))
	return err
}

// WriteMarkdown writes the figures of the run for a page of the documentation.
func (s *Soak) WriteMarkdown(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s, %s, %d messages a second, seed %d, %s, %s.\n\n", s.Began.UTC().Format(time.DateTime+" MST"), s.length().Round(time.Second),
		s.Rate, s.Seed, plural(s.Cores, "core"), s.Go)
	fmt.Fprintf(&out, "**%s.**\n\n", s.verdict())
	if s.End != nil {
		for _, text := range s.End.Broken {
			fmt.Fprintf(&out, "- broken: %s\n", text)
		}
		for _, note := range s.End.Notes {
			fmt.Fprintf(&out, "- %s\n", note)
		}
		fmt.Fprintf(&out, "- %d rounds of scenarios\n\n", s.End.Rounds)
	}
	fmt.Fprintf(&out, "| measure | second quarter | last quarter | allowed | which is | |\n|---|---|---|---|---|---|\n")
	small := 0
	for _, g := range s.Growths() {
		if g.Small && !g.Grew {
			small++
			continue
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | + %s | %s |\n", g.Name, g.Before, g.After, g.Allowed, g.Limit, g.Word())
	}
	if small > 0 {
		fmt.Fprintf(&out, "| %s, each below 1 MiB | | | | | steady |\n", plural(small, "more table"))
	}
	_, err := out.WriteTo(w)
	return err
}

// Word is the judgement in a word.
func (g Growth) Word() string {
	switch {
	case g.Short:
		return "too short"
	case g.Grew:
		return "GREW"
	}
	return "steady"
}

// The lines between which a page of the documentation has the figures.
const figuresBegin, figuresEnd = "<!-- figures of the run -->\n", "<!-- end of the figures -->\n"

// ReplaceFigures puts the figures of the run into a page of the documentation.
func (s *Soak) ReplaceFigures(page []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(page, []byte(figuresBegin))
	_, after, there := bytes.Cut(rest, []byte(figuresEnd))
	if !ok || !there {
		return nil, errors.New("the page has no place for the figures of a run")
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(figuresBegin + "\n")
	if err := s.WriteMarkdown(&out); err != nil {
		return nil, err
	}
	out.WriteString("\n" + figuresEnd)
	out.Write(after)
	return out.Bytes(), nil
}
