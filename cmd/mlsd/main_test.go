package main

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

// deadline bounds every wait in these tests. A wait is usually much shorter.
const deadline = 60 * time.Second

// childEnv makes this test binary run as mlsd, which is quicker than building mlsd.
const childEnv = "MLSD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		go exitAtEOF()
		main()
		os.Exit(0)
	}
	if os.Getenv(eraserEnv) != "" {
		if err := eraseAsChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// exitAtEOF ends this process when the test that started it ends or is killed, because that closes
// the input.
func exitAtEOF() {
	_, err := io.Copy(io.Discard, os.Stdin)
	fmt.Fprintln(os.Stderr, "the test has ended:", err)
	os.Exit(3)
}
