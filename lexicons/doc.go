// Package lexicons holds the contract: one Lexicon JSON file for each NSID, in the folder that the
// NSID names. Beside each lexicon of a method is a page for the API reference.
//
// The lexicons are the only source of generated code (api/mlsapi, internal/nsid, and the Swift
// client's code), of the API reference (docs/clients/api), of input validation and of error names.
// After a change, run go generate. Tests fail if generated files are outdated, or if a change would
// break a client that was built against an earlier version. It imports nothing.
package lexicons
