package main

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"mlsd/lexicons"
)

// notes is the page beside a lexicon: what the reference says about the method in addition to the
// lexicon.
type notes struct {
	group   string // group in the index
	place   int    // place in the group
	scope   string // the least permission set with the method; "none" if services call the method
	repeat  string // a paragraph: what a repeated call does, and what prevents a double effect
	example string // a call and its answer, which a test runs
	advice  errorNotes
}

// errorNotes says, for each error, when it comes (if no lexicon says so), and what a client does.
type errorNotes map[string]struct{ when, do string }

// The parts of the pages.
var (
	groupLine = regexp.MustCompile(`^Group: (.+) (\d+)\nScope: (\w+)\n\n`)
	errorRow  = regexp.MustCompile("(?m)^\\| `(\\w+)` \\|(?: ([^|]+) \\|)? ([^|]+) \\|$")
	linkTo    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// errorsPage has the advice about errors that is on no page of a method.
const errorsPage = "ERRORS"

// readNotes reads the page of a method, by the last part of its NSID.
func readNotes(name string) (n notes, err error) {
	text, err := readPage(name)
	if err != nil {
		return n, err
	}
	head := groupLine.FindStringSubmatch(text)
	if head == nil {
		return n, fmt.Errorf("the page beside the lexicon of %s does not begin with Group: NAME PLACE and Scope: SET", name)
	}
	n.group, n.scope = head[1], head[3]
	if n.place, err = strconv.Atoi(head[2]); err != nil {
		return n, err
	}
	text, n.advice = strings.TrimPrefix(text, head[0]), readErrors(text)
	text, _, _ = strings.Cut(text, "\n| error |")
	repeat, example, ok := strings.Cut(text, "\n\n```bash\n")
	if !ok {
		return n, fmt.Errorf("the page beside the lexicon of %s has no example", name)
	}
	n.repeat, n.example = repeat, "```bash\n"+example
	return n, nil
}

// readPage reads a page beside the lexicons. It changes the links, so that they work from the
// reference.
func readPage(name string) (string, error) {
	file := path.Join(path.Dir(lexicons.Pattern), name+".md")
	text, err := fs.ReadFile(lexicons.Pages, file)
	if err != nil {
		return "", err
	}
	from := path.Join("lexicons", path.Dir(file))
	return linkTo.ReplaceAllStringFunc(string(text), func(link string) string {
		target, heading, hasHeading := strings.Cut(linkTo.FindStringSubmatch(link)[1], "#")
		target = fromReference(path.Join(from, target))
		if hasHeading {
			target += "#" + heading
		}
		return "](" + target + ")"
	}), nil
}

// fromReference returns the path to a document from a page of the reference.
func fromReference(file string) string {
	if name, ok := strings.CutPrefix(file, referenceDir+"/"); ok {
		return name
	}
	if name, ok := strings.CutPrefix(file, clientDocs+"/"); ok {
		return "../" + name
	}
	if name, ok := strings.CutPrefix(file, path.Dir(clientDocs)+"/"); ok {
		return "../../" + name
	}
	return "../../../" + file
}

// readErrors reads the tables of errors.
func readErrors(text string) errorNotes {
	all := errorNotes{}
	for _, row := range errorRow.FindAllStringSubmatch(text, -1) {
		all[row[1]] = struct{ when, do string }{row[2], row[3]}
	}
	return all
}
