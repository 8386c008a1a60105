// Package lexicons holds the contract: one Lexicon JSON file per NSID.
//
// These files are the only source of generated code (api/mlsapi), of input
// validation and of error names. After a change run go generate; a test
// refuses generated code that is behind, and another refuses a change that
// would break a client that was built against an earlier state.
package lexicons

import "embed"

//go:generate go run mlsd/internal/lexgen

// Files holds every <nsid>.json of the directory.
//
//go:embed *.json
var Files embed.FS
