// Package mlsapi is the Go face of the blue.catbird.mls lexicons: types,
// decoders that validate as they read, canonical encoding, error names and the
// route table.
//
// Files that say "Code generated" come from lexicons/ by go generate; the others
// are the runtime that the generated code calls. A decoder accepts exactly what
// the lexicon accepts and what CONTRACT adds to it (two base64 forms, printable
// idempotency keys); whatever it refuses, it refuses with a [*Violation] that
// names the field and never repeats the value.
//
// Two rules go beyond the lexicons. Strings may not hold U+0000, which
// PostgreSQL's text cannot store, and an object may not hold more than
// maxUnknown fields that its lexicon does not know.
package mlsapi
