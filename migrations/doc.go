// Package migrations holds the schema of the database as numbered pairs of SQL files. golang-
// migrate applies the files, through a driver of ours: see driver.go. A released pair never
// changes. A later pair changes the schema further.
//
// It may import only internal. node and cmd apply migrations; events reads the version.
package migrations
