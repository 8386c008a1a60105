package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/urfave/cli/v3"

	"mlsd/features/reports"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/errs"
	"mlsd/node"
	"mlsd/operator"
)

// reportKeyCommand returns the command "report-key".
func reportKeyCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name: "report-key", Usage: "the key for reports of abuse: the server has the public half, and the operator keeps " +
			"the private one elsewhere",
		Action: node.WithConfig(0,
			func(_ context.Context, _ node.Config, cmd *cli.Command) error { return cli.ShowSubcommandHelp(cmd) }),
		Commands: []*cli.Command{{
			Name: "new", Usage: "make a key: FILE gets the private half, FILE.pub the public one", ArgsUsage: "FILE",
			Action: node.WithConfig(1, func(_ context.Context, _ node.Config, cmd *cli.Command) error {
				if cmd.Args().First() == "" {
					return fmt.Errorf("%s: name a file", cmd.FullName())
				}
				return newReportKey(cmd.Args().First(), stdout)
			}),
		}},
	}
}

// newReportKey writes a new key to a file that does not exist yet, and the key's public half to a
// second file.
func newReportKey(path string, stdout io.Writer) error {
	key, err := reports.NewPrivateKey()
	if err != nil {
		return err
	}
	private, err := key.Text()
	if err != nil {
		return err
	}
	public := key.Public()
	if err := writeNew(path, private, 0o600); err != nil {
		return err
	}
	if err := writeNew(path+".pub", public.String(), 0o644); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	_, err = fmt.Fprintf(stdout,
		"%s has the private half: keep it off the server, with a copy\nMLSD_REPORT_KEY=%s\nkey id %s\n", path, public,
		public.ID())
	return err
}

// writeNew writes a line to a file that must not exist.
func writeNew(path, line string, mode os.FileMode) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(line + "\n"); err != nil {
		return err
	}
	return f.Sync()
}

// openReportCommand returns the command "admin report open". The command opens a report on the
// machine on which it runs, so the server never gets the content.
func openReportCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name: "open", Usage: "print what a report reveals; the private key stays on this machine", ArgsUsage: "ID",
		Flags: []cli.Flag{&cli.StringFlag{Name: "key", Usage: "file with the private key, as mlsd report-key new wrote it",
			Required: true}},
		Action: node.WithConfig(1, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
			if cmd.Args().First() == "" {
				return fmt.Errorf("%s: id is missing", cmd.FullName())
			}
			key, err := readReportKey(cmd.String("key"))
			if err != nil {
				return err
			}
			var answer strings.Builder
			call := operator.Call{Params: map[string]string{"id": cmd.Args().First()}}
			if err := callMethod(ctx, cfg, operator.ReportFetch(), call, true, &answer); err != nil {
				return err
			}
			var fetched operator.FetchedReport
			if err := json.Unmarshal([]byte(answer.String()), &fetched); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
			return openReport(key, fetched, stdout)
		}),
	}
}

func readReportKey(path string) (reports.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return reports.PrivateKey{}, err
	}
	key, err := reports.ParsePrivateKey(strings.TrimSpace(string(text)))
	return key, errs.Wrap(err, "%s", path)
}

// openReport prints the content of a sealed report. It escapes everything that a terminal would
// obey.
func openReport(key reports.PrivateKey, sealed operator.FetchedReport, stdout io.Writer) error {
	if err := sealed.Check(); err != nil {
		return err
	}
	if id := key.Public().ID(); id != sealed.KeyID {
		return fmt.Errorf("the report is sealed to the key %s, and the file has %s", sealed.KeyID, id)
	}
	opened, err := key.Open(sealed.Binding, sealed.Sealed.Sealed)
	if err != nil {
		return err
	}
	content, err := reports.ReadContent(opened)
	if err != nil {
		return err
	}
	document, err := json.Marshal(openedReport{sealed.ID, sealed.Convo, sealed.Reporter, evidence(content, sealed),
		opened})
	if err != nil {
		return fmt.Errorf("print a report: %w", err)
	}
	text, err := reports.Printable(document)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, text)
	return err
}

// openedReport is the output of "admin report open".
type openedReport struct {
	ID       uuid.UUID       `json:"id"`
	Convo    uuid.UUID       `json:"convo"`
	Reporter syntax.DID      `json:"reporter"`
	Evidence string          `json:"evidence"`
	Content  json.RawMessage `json:"content"`
}

// evidence says which parts of a content do not rest on the reporter's word alone.
func evidence(c reports.Content, sealed operator.FetchedReport) string {
	const word = "what they say is the reporter's word"
	if c.Head == "" {
		return fmt.Sprintf("%d messages, and no head of the log: all of it is the reporter's word", len(c.Messages))
	}
	head, err := verifier.OpenProven(c.Head, sealed.LogKeys)
	if err == nil && head.ConvoID != sealed.Convo.String() {
		err = errors.New("it is of another convo")
	}
	if err != nil {
		return fmt.Sprintf("%d messages, and a head of the log that proves nothing (%v): all of it is the reporter's word",
			len(c.Messages), err)
	}
	var proven, rest []string
	for _, m := range c.Messages {
		if err := head.CheckProof(m.Seq, m.Sender, m.Proof); err != nil {
			rest = append(rest, fmt.Sprintf("%d (%v)", m.Seq, err))
			continue
		}
		proven = append(proven, strconv.FormatInt(m.Seq, 10))
	}
	return fmt.Sprintf("in the log of %s, of these senders: entries %s; not shown: %s; %s",
		head.At.Format(time.RFC3339), orNone(proven), orNone(rest), word)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
