package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/node"
	"mlsd/operator"
)

// adminCommand returns the command "admin". It has one subcommand for each method of the admin
// listener, which it calls over HTTP.
func adminCommand(environ []string, stdout io.Writer) *cli.Command {
	command := &cli.Command{
		Name: "admin", Usage: "ask a running mlsd about accounts, convos and keys, and change them; each change is recorded",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "as JSON"},
			&cli.StringFlag{Name: "operator", Usage: "who acts, for the record", Value: variable(environ, "USER"),
				DefaultText: "$USER"},
			&cli.StringFlag{Name: "reason", Usage: "why, for the record: every change needs one"},
		},
		Action: node.WithConfig(0,
			func(_ context.Context, _ node.Config, cmd *cli.Command) error { return cli.ShowSubcommandHelp(cmd) }),
	}
	for _, m := range operator.Methods() {
		if m.Command {
			continue
		}
		i := slices.IndexFunc(command.Commands, func(c *cli.Command) bool { return c.Name == m.Noun })
		if i < 0 {
			i = len(command.Commands)
			command.Commands = append(command.Commands, &cli.Command{
				Name: m.Noun,
				Action: node.WithConfig(0,
					func(_ context.Context, _ node.Config, cmd *cli.Command) error { return cli.ShowSubcommandHelp(cmd) }),
			})
		}
		command.Commands[i].Commands = append(command.Commands[i].Commands, methodCommand(m, stdout))
	}
	i := slices.IndexFunc(command.Commands, func(c *cli.Command) bool { return c.Name == "report" })
	command.Commands[i].Commands = append(command.Commands[i].Commands, openReportCommand(stdout))
	return command
}

// variable returns the value of an environment variable, or "".
func variable(environ []string, name string) string {
	for _, entry := range environ {
		if value, found := strings.CutPrefix(entry, name+"="); found {
			return value
		}
	}
	return ""
}

// methodCommand returns the command of a method.
func methodCommand(m operator.Method, stdout io.Writer) *cli.Command {
	arguments := argumentsOf(m)
	return &cli.Command{
		Name: m.Verb, Usage: m.Usage, ArgsUsage: usageOf(arguments), Flags: flagsOf(m.Params),
		Action: node.WithConfig(len(arguments), func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
			given := givenTo(cmd, m)
			if m.Write {
				given["operator"], given["reason"] = cmd.String("operator"), cmd.String("reason")
				if given["operator"] == "" || given["reason"] == "" {
					return fmt.Errorf("%s: --operator and --reason must say who does this, and why", cmd.FullName())
				}
			}
			c, err := m.NewCall(given)
			if err != nil {
				return fmt.Errorf("%s: %w", cmd.FullName(), err)
			}
			return callMethod(ctx, cfg, m, c, cmd.Bool("json"), stdout)
		}),
	}
}

// argumentsOf returns the parameters of a method that are arguments of its command.
func argumentsOf(m operator.Method) []operator.Param {
	return slices.DeleteFunc(slices.Clone(m.Params), func(p operator.Param) bool { return !p.Argument() })
}

// usageOf returns the names of a command's arguments, such as DID [ID].
func usageOf(arguments []operator.Param) string {
	var names []string
	for _, p := range arguments {
		name := strings.ToUpper(p.Name)
		if p.Optional {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// flagsOf returns the flags of a command.
func flagsOf(params []operator.Param) (flags []cli.Flag) {
	for _, p := range params {
		switch {
		case p.Argument():
		case p.Flag():
			flags = append(flags, &cli.BoolFlag{Name: p.Name, Usage: p.Usage})
		default:
			flags = append(flags, &cli.StringFlag{Name: p.Name, Usage: p.Usage})
		}
	}
	return flags
}

// givenTo returns the parameters of a method that are on the command line, by name.
func givenTo(cmd *cli.Command, m operator.Method) map[string]string {
	given := map[string]string{}
	for i, p := range argumentsOf(m) {
		given[p.Name] = cmd.Args().Get(i)
	}
	for _, p := range m.Params {
		switch {
		case p.Argument():
		case p.Flag() && cmd.Bool(p.Name):
			given[p.Name] = operator.FlagSet
		case !p.Flag():
			given[p.Name] = cmd.String(p.Name)
		}
	}
	return given
}

// callMethod calls a method and prints its result: as JSON, or one field per line. An archive is
// printed as it arrives.
func callMethod(ctx context.Context, cfg node.Config, m operator.Method, c operator.Call, asJSON bool,
	stdout io.Writer) (err error) {
	base, err := adminURL(cfg)
	if err != nil {
		return err
	}
	req, err := m.Request(ctx, base, c)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	authorize(req, cfg)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("reach the admin listener (MLSD_ADMIN_URL): %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode == http.StatusOK && resp.Header.Get("Content-Type") == operator.ArchiveType {
		_, err := io.Copy(stdout, resp.Body)
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var refused operator.Error
		if err := json.Unmarshal(body, &refused); err != nil || refused.Name == "" {
			return fmt.Errorf("%s: the admin listener answers %s", m.Name(), resp.Status)
		}
		return fmt.Errorf("%s: %s: %s", m.Name(), refused.Name, refused.Message)
	}
	if asJSON {
		var out bytes.Buffer
		if err := json.Indent(&out, body, "", "  "); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		_, err := out.WriteTo(stdout)
		return err
	}
	return operator.WriteText(stdout, json.RawMessage(body), "")
}

// authorize adds a token of the admin listener to a request.
func authorize(req *http.Request, cfg node.Config) {
	tokens := cfg.Admin.Tokens
	switch {
	case tokens.Write != "":
		req.Header.Set("Authorization", "Bearer "+tokens.Write)
	case tokens.Read != "":
		req.Header.Set("Authorization", "Bearer "+tokens.Read)
	}
}

// adminURL returns the URL of the admin listener.
func adminURL(cfg node.Config) (string, error) {
	if cfg.Admin.URL != "" {
		return strings.TrimSuffix(cfg.Admin.URL, "/"), nil
	}
	host, port, err := net.SplitHostPort(cfg.AdminListen)
	if err != nil {
		return "", fmt.Errorf("MLSD_ADMIN_LISTEN: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return (&url.URL{Scheme: "http", Host: net.JoinHostPort(host, port)}).String(), nil
}
