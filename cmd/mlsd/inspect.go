package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"

	"mlsd/internal/errs"
	"mlsd/node"
	"mlsd/operator"
)

// inspectCommand returns the command "inspect". The command reads the database, and needs no
// server. It has one subcommand for each question. The order of the subcommands is the order in
// which "all" prints the answers.
func inspectCommand(stdout io.Writer) *cli.Command {
	ask := func(arguments int, questions ...operator.Method) cli.ActionFunc {
		return node.AsService(arguments, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
			return inspect(ctx, cfg, cmd, stdout, questions)
		})
	}
	command := &cli.Command{
		Name: "inspect", Usage: "look into the database of a running mlsd; changes nothing",
		Flags: append(flagsOf(operator.Options()),
			&cli.BoolFlag{Name: "json", Usage: "as JSON"},
			&cli.DurationFlag{Name: "timeout", Usage: "time limit of one query", Value: 30 * time.Second}),
	}
	questions := slices.DeleteFunc(operator.Methods(), func(m operator.Method) bool { return !m.Question() })
	command.Action = ask(0, questions...)
	command.Commands = []*cli.Command{{Name: "all", Usage: "everything below (the default)", Action: command.Action}}
	for _, m := range questions {
		own, arguments := m.Params[:len(m.Params)-len(operator.Options())], argumentsOf(m)
		command.Commands = append(command.Commands, &cli.Command{
			Name: m.Verb, Usage: m.Usage, ArgsUsage: usageOf(arguments), Flags: flagsOf(own), Action: ask(len(arguments), m),
		})
	}
	return command
}

// inspect asks questions and prints the answers. All answers are as of the same moment.
func inspect(ctx context.Context, cfg node.Config, cmd *cli.Command, stdout io.Writer,
	questions []operator.Method) (err error) {
	if cmd.Duration("timeout") <= 0 {
		return errors.New("inspect: --timeout must be positive")
	}
	conn, err := connectToInspect(ctx, cfg, cmd.Duration("timeout"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	service := operator.New(operator.Config{Lifetimes: cfg.Lifetimes, Quotas: cfg.Quotas})
	answers, nothing := make([]any, len(questions)), make([]string, len(questions))
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
			return err
		}
		for n, m := range questions {
			call, err := m.NewCall(givenTo(cmd, m))
			if err == nil {
				nothing[n] = m.Nothing(call)
				answers[n], err = service.Ask(ctx, tx, m, call)
			}
			if err != nil {
				return fmt.Errorf("inspect %s: %w", m.Verb, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if cmd.Bool("json") {
		return writeJSON(stdout, questions, answers)
	}
	return writeTexts(stdout, questions, answers, nothing)
}

// connectToInspect connects to the database that cfg names, or to the private PostgreSQL of the
// mlsd that runs on the data directory.
func connectToInspect(ctx context.Context, cfg node.Config, timeout time.Duration) (*pgx.Conn, error) {
	url, err := node.RunningDatabase(cfg)
	if err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	conn, err := connect(ctx, url, map[string]string{
		"application_name":  "mlsd inspect",
		"statement_timeout": fmt.Sprint(timeout.Milliseconds()),
	})
	return conn, errs.Wrap(err, "inspect")
}

// writeJSON writes a single answer as it is. It writes several answers as an object whose keys are
// the names of the questions.
func writeJSON(w io.Writer, questions []operator.Method, answers []any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	if len(answers) == 1 {
		return out.Encode(answers[0])
	}
	all := map[string]any{}
	for i, m := range questions {
		all[m.Verb] = answers[i]
	}
	return out.Encode(all)
}

// writeTexts writes the answers. nothing has the texts for questions that have found nothing.
func writeTexts(w io.Writer, questions []operator.Method, answers []any, nothing []string) error {
	var out bytes.Buffer
	for i, m := range questions {
		if len(questions) > 1 {
			fmt.Fprintf(&out, "== %s: %s\n", m.Verb, m.Usage)
		}
		if err := operator.WriteText(&out, answers[i], nothing[i]); err != nil {
			return err
		}
		if i < len(questions)-1 {
			out.WriteByte('\n')
		}
	}
	_, err := out.WriteTo(w)
	return err
}
