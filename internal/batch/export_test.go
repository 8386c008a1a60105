package batch

// MaxRest is the longest pause between two batches.
const MaxRest = maxRest
