package lexicons

import (
	"embed"
	"strings"
)

//go:generate go run mlsd/internal/lexgen -lang scopes
//go:generate go run mlsd/internal/lexgen
//go:generate go run mlsd/internal/lexgen -lang swift
//go:generate go run mlsd/internal/lexgen -lang docs

// Files holds every lexicon at its [Path].
//
//go:embed blue/catbird/mls/*.json
var Files embed.FS

// Pages holds the pages beside the lexicons: one page for each method, with an example of a call,
// and one page about errors. The reference is made from the lexicons and the pages.
//
//go:embed blue/catbird/mls/*.md
var Pages embed.FS

// Pattern matches the paths of all lexicons.
const Pattern = "blue/catbird/mls/*.json"

// Path returns the path of the lexicon with the NSID, such as blue/catbird/mls/getEpoch.json.
func Path(nsid string) string { return strings.ReplaceAll(nsid, ".", "/") + ".json" }
