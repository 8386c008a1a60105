package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/node"
)

// checkCommand returns the command "check".
func checkCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "let a running mlsd check its promises in the stored data (GET /check); fails if one is broken",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "convo", Usage: "check only this convo"},
			&cli.StringFlag{Name: "sample", Usage: "check only so many convos, chosen at random, and the people in them"},
			&cli.StringFlag{Name: "since",
				Usage: "check what has changed in logs, rosters and events since this time, such as 2026-11-22T10:15:00Z, or for " +
					"so long, such as 2h"},
			&cli.StringFlag{Name: "cursor", Usage: "go on where a check of everything, or --since, has stopped"},
		},
		Action: node.WithConfig(0, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
			query := url.Values{}
			for _, name := range []string{"convo", "sample", "since", "cursor"} {
				if cmd.IsSet(name) {
					query.Set(name, cmd.String(name))
				}
			}
			return check(ctx, cfg, query, stdout, stderr)
		}),
	}
}

// check prints what the check of query finds, a violation per line. It makes a check of everything,
// or since a time, part by part. After each part it prints to stderr how much was checked.
func check(ctx context.Context, cfg node.Config, query url.Values, stdout, stderr io.Writer) error {
	if query.Has("convo") || query.Has("sample") {
		var violations []string
		if err := askCheck(ctx, cfg, query, &violations); err != nil {
			return err
		}
		return report(violations, 0, stdout)
	}
	if !query.Has("cursor") {
		query.Set("cursor", "")
	}
	for found := 0; ; {
		var part struct {
			Violations      []string
			Checked, Cursor string
		}
		if err := askCheck(ctx, cfg, query, &part); err != nil {
			if cursor := query.Get("cursor"); cursor != "" {
				err = fmt.Errorf("%w\nto go on: mlsd check --cursor %s", err, cursor)
			}
			return err
		}
		if _, err := fmt.Fprintln(stderr, part.Checked); err != nil {
			return err
		}
		if part.Cursor == "" {
			return report(part.Violations, found, stdout)
		}
		if err := printLines(stdout, part.Violations); err != nil {
			return err
		}
		found += len(part.Violations)
		query = url.Values{"cursor": {part.Cursor}}
	}
}

// report prints the last violations. It returns an error if there are any, or if some were printed
// before.
func report(violations []string, before int, stdout io.Writer) error {
	if err := printLines(stdout, violations); err != nil {
		return err
	}
	if n := before + len(violations); n > 0 {
		return fmt.Errorf("%d violations", n)
	}
	_, err := fmt.Fprintln(stdout, "every promise holds")
	return err
}

func printLines(w io.Writer, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// askCheck sends a query to /check of the admin listener, and decodes the answer.
func askCheck(ctx context.Context, cfg node.Config, query url.Values, answer any) (err error) {
	base, err := adminURL(cfg)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/check?"+query.Encode(), nil)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	authorize(req, cfg)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("reach the admin listener (MLSD_ADMIN_URL): %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("check: %s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
