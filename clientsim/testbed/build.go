package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	. "mlsd/clientsim/steps"
)

// FindServer returns the path of a mlsd binary: the given one, else the one beside this executable,
// else one that it builds into dir.
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
	return BuildServer(ctx, dir)
}

// BuildServer builds mlsd into dir, from the module of the working directory, with the given flags of
// go build.
func BuildServer(ctx context.Context, dir string, flags ...string) (string, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", fmt.Errorf("no mlsd to run: name one with --mlsd, or run inside its module: %w", err)
	}
	binary := filepath.Join(dir, "mlsd")
	command := exec.CommandContext(ctx, "go",
		slices.Concat([]string{"build", "-o", binary}, flags, []string{"./cmd/mlsd"})...)
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build mlsd: %w\n%s", err, output)
	}
	return binary, nil
}

func moduleRoot(ctx context.Context) (_ string, err error) {
	defer Catch(&err)
	output := Must(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output())
	path, root, ok := bytes.Cut(bytes.TrimSpace(output), []byte(" "))
	if !ok || string(path) != "mlsd" {
		return "", errors.New("the working directory is in another module")
	}
	return string(root), nil
}
