//go:build race

package lexcodec_test

// The race detector slows code down about tenfold, and makes sync.Pool forget,
// on which package regexp and the decoders rely: its times and memory say nothing.
const measurable = false
