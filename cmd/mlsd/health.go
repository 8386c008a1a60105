package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/node"
)

// healthTimeout is how long the command "health" waits for an answer.
const healthTimeout = 3 * time.Second

// healthCommand returns the command "health", for containers that have no curl.
func healthCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name: "health", Usage: "ask a running mlsd whether it is ready (GET /readyz); fails if it is not",
		Action: node.WithConfig(0,
			func(ctx context.Context, cfg node.Config, _ *cli.Command) error { return health(ctx, cfg, stdout) }),
	}
}

// health prints the answer of /readyz. It returns an error unless the status is 200.
func health(ctx context.Context, cfg node.Config, stdout io.Writer) (err error) {
	base, err := adminURL(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("reach the admin listener (MLSD_ADMIN_URL): %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	_, err = stdout.Write(text)
	return err
}
