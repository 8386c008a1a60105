package main

import (
	"strings"
	"unicode"
)

// goName turns a lexicon's lowerCamelCase or snake_case name into a Go name.
func goName(name string) string {
	var b strings.Builder
	for _, word := range words(name) {
		b.WriteString(capital(word))
	}
	return b.String()
}

// words splits a name at capitals and underscores.
func words(name string) []string {
	var out []string
	start := 0
	for i, r := range name {
		if i > start && (unicode.IsUpper(r) || r == '_') {
			out = append(out, name[start:i])
			start = i
		}
		if r == '_' {
			start = i + 1
		}
	}
	return append(out, name[start:])
}

func capital(word string) string {
	switch strings.ToLower(word) {
	case "id", "did", "uri", "url":
		return strings.ToUpper(word)
	case "ids", "dids", "uris", "urls":
		return strings.ToUpper(word[:len(word)-1]) + "s"
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

// lastSegment returns the method's own name in its NSID.
func lastSegment(nsid string) string { return nsid[strings.LastIndexByte(nsid, '.')+1:] }

// refName returns the Go name of the definition that ref names. All definitions are in one package.
// The generator refuses two definitions with the same name.
func refName(ref string) (string, error) {
	_, frag, ok := strings.Cut(ref, "#")
	if !ok || frag == "main" {
		return "", errUnsupported("a ref to a main definition", ref)
	}
	return goName(frag), nil
}
