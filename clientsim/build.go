package clientsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// FindServer returns a mlsd binary: the given one, the one beside this
// executable, or one built into dir from the module that the working directory
// is in.
func FindServer(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return exec.LookPath(given)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "mlsd")
		if info, err := os.Stat(beside); err == nil && !info.IsDir() {
			return beside, nil
		}
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", fmt.Errorf("no mlsd to run: name one with --mlsd, or run inside its module: %w", err)
	}
	binary := filepath.Join(dir, "mlsd")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/mlsd")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build mlsd: %w\n%s", err, output)
	}
	return binary, nil
}

func moduleRoot(ctx context.Context) (string, error) {
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		return "", err
	}
	path, root, ok := bytes.Cut(bytes.TrimSpace(output), []byte(" "))
	if !ok || string(path) != "mlsd" {
		return "", errors.New("the working directory is in another module")
	}
	return string(root), nil
}
