package node

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v3"
)

// release is the version that the binary was built as, such as v1.2.0. The linker sets it
// (-ldflags "-X mlsd/node.release=v1.2.0").
var release string

// build says what the binary was built from.
type build struct {
	version  string // of the release, or "dev"
	commit   string // "" means not known
	date     string // date of the commit, RFC 3339; "" means not known
	modified bool   // built from the commit with changes
}

// built returns what this binary was built from.
func built() build {
	b := build{version: cmp.Or(release, "dev")}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.commit = s.Value
		case "vcs.time":
			b.date = s.Value
		case "vcs.modified":
			b.modified = s.Value == "true"
		}
	}
	return b
}

// String is one line: version, commit, date.
func (b build) String() string {
	text := b.version
	if b.commit != "" {
		text += " commit " + b.commit[:min(len(b.commit), 12)]
	}
	if b.modified {
		text += " and changes"
	}
	if b.date != "" {
		text += " of " + b.date
	}
	return text
}

// Version is how this node names itself to clients and to the other nodes: the release, a plus sign
// and the commit.
func Version() string {
	b := built()
	if b.commit == "" {
		return b.version
	}
	return b.version + "+" + b.commit[:min(len(b.commit), 12)]
}

// versionCommand returns the command "version" of a program.
func versionCommand(app *cli.Command) *cli.Command {
	return &cli.Command{Name: "version", Usage: "print version, commit and date",
		Action: func(_ context.Context, cmd *cli.Command) error {
			if cmd.Args().Present() {
				return unknownArgument(cmd, cmd.Args().First())
			}
			_, err := fmt.Fprintf(app.Writer, "%s %s\n%s %s/%s\n", app.Name, built(), runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		}}
}
