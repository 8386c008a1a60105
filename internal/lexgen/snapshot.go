package main

import "io"

func landSnapshot(set schemas, path string, out io.Writer) error { return nil }
