// Package lexicons holds the contract: one Lexicon JSON file per NSID, in the folders that the NSID
// names. Beside each stands a page for the reference of the API.
//
// These files are the only source of generated code (api/mlsapi, internal/nsid, the Swift
// client's), of the API reference (docs/clients/api), of input validation and of error names. After
// a change run go generate; a test refuses generated files that are behind, and another refuses a
// change that would break a client that was built against an earlier state.
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

// Pages holds the pages beside the lexicons: a page for each method with an example of a call, and one
// about errors. The reference is made from both.
//
//go:embed blue/catbird/mls/*.md
var Pages embed.FS

// Pattern matches the paths of all lexicons.
const Pattern = "blue/catbird/mls/*.json"

// Path is the file of the lexicon with the NSID, such as blue/catbird/mls/getEpoch.json.
func Path(nsid string) string { return strings.ReplaceAll(nsid, ".", "/") + ".json" }
