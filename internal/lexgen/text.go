package main

import (
	"embed"
	"strings"
)

//go:embed text
var texts embed.FS

// fixed returns a part of a generated file that does not depend on the lexicons, without its last
// line break.
func fixed(name string) string {
	content, err := texts.ReadFile("text/" + name + ".txt")
	if err != nil {
		panic(err) // the file is part of the program
	}
	return strings.TrimSuffix(string(content), "\n")
}
