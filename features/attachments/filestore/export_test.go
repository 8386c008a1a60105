package filestore

// First is what List reads of a directory, for tests of its memory.
var First = first
