// Package lexcodec decodes and encodes the values of lexicons, in JSON and in
// DAG-CBOR. The generated code of package mlsapi calls it.
//
// A decoder accepts exactly what the lexicon accepts, with two exceptions: it reads both alphabets
// of base64, and it accepts only printable idempotency keys. It refuses everything else with a
// [*Violation], which names the field and never repeats the value.
//
// Two rules go beyond the lexicons. Strings must not hold U+0000, because
// PostgreSQL's text cannot store it. An object must not hold more than maxUnknown
// fields that its lexicon does not know.
package lexcodec
