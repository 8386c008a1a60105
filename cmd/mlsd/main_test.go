package main

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

// deadline bounds every wait in these tests; none should come near it.
const deadline = 60 * time.Second

// childEnv makes this test binary mlsd itself, which is quicker than building it.
const childEnv = testPrefix + "CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		go exitAtEOF()
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// exitAtEOF ends this process with the test that started it, even if that is killed: only a test's end closes our input.
func exitAtEOF() {
	_, err := io.Copy(io.Discard, os.Stdin)
	fmt.Fprintln(os.Stderr, "the test has ended:", err)
	os.Exit(3)
}
