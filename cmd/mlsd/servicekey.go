package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"mlsd/features/network"
	"mlsd/node"
)

// serviceKeyCommand returns the command "service-key".
func serviceKeyCommand(stdout, stderr io.Writer) *cli.Command {
	list := withServiceKey(func(_ context.Context, cfg node.Config, _ *cli.Command) error {
		keys, err := network.ListKeys(cfg.ServiceKeyFile)
		if err != nil {
			return err
		}
		return writeServiceKeys(stdout, cfg.ServiceKeyFile, keys)
	})
	rotate := withServiceKey(func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
		return node.WithDatabase(ctx, cfg, stderr, func(url string) (err error) {
			conn, err := connect(ctx, url, map[string]string{"application_name": "mlsd service-key"})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
			keys, err := cfg.RotateServiceKey(ctx, conn, cmd.Bool("leaked"))
			if err != nil {
				return err
			}
			return writeServiceKeys(stdout, cfg.ServiceKeyFile, keys)
		})
	})
	return &cli.Command{
		Name: "service-key", Usage: "the key that the service signs with for other services (MLSD_SERVICE_KEY_FILE)",
		Action: node.WithConfig(0,
			func(_ context.Context, _ node.Config, cmd *cli.Command) error { return cli.ShowSubcommandHelp(cmd) }),
		Commands: []*cli.Command{
			{Name: "list", Usage: "the public halves, as the DID document has them", Action: list},
			{Name: "rotate", Usage: "make another key; nodes sign with it once they have its file", Action: rotate,
				Flags: []cli.Flag{&cli.BoolFlag{Name: "leaked",
					Usage: "drop the key before at once: what it has signed is refused"}}},
		},
	}
}

// withServiceKey returns do as an action of a service that has a key.
func withServiceKey(do func(ctx context.Context, cfg node.Config, cmd *cli.Command) error) cli.ActionFunc {
	return node.AsService(0, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
		if cfg.Services.Nobody() {
			return fmt.Errorf("%s: the service deals with no other service (MLSD_SERVICES), so it has no key",
				cmd.FullName())
		}
		return do(ctx, cfg, cmd)
	})
}

// writeServiceKeys writes what a DID document has of the keys.
func writeServiceKeys(w io.Writer, path string, keys []network.Key) error {
	text := "these keys are in " + path + "; each node needs this file, and a copy apart from the database's backups\n"
	for _, k := range keys {
		if k.Signs {
			text += "#atproto did:key:" + k.Multikey + "\n"
		}
		text += k.ID + " did:key:" + k.Multikey + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
