package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"
)

// What the Debian package installs, below the root of its file system.
const (
	packagedProgram  = "usr/bin/mlsd"
	packagedSettings = "etc/mlsd/mlsd.env"
	packagedAccount  = "mlsd" // the service runs as this account
)

// packagedEnvFile returns the package's file of settings if this process runs the package's
// program, and "" if it runs another one. So a command that is typed without settings acts on the
// service's database. An image with the same program has no such file, and gets "".
func packagedEnvFile() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	root, found := strings.CutSuffix(program, "/"+packagedProgram)
	if !found {
		return "", nil
	}
	path := filepath.Join("/", root, packagedSettings)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return path, nil
}

// withPackagedSettings returns an environment in which MLSD_ENV_FILE, unless it is set, names the
// package's file.
func withPackagedSettings(environ []string) ([]string, error) {
	name := variableOf(envFileFlag)
	if _, set := os.LookupEnv(name); set {
		return environ, nil
	}
	path, err := packagedEnvFile()
	if err != nil || path == "" {
		return environ, err
	}
	return append(environ, name+"="+path), nil
}

// AsService is WithConfig for what the service does, or what a command does in its place. With the
// package's settings, root becomes the service's account first. So PostgreSQL knows the account,
// and a file that the service cannot read is found.
func AsService(arguments int, do func(ctx context.Context, cfg Config, cmd *cli.Command) error) cli.ActionFunc {
	action := WithConfig(arguments, do)
	return func(ctx context.Context, cmd *cli.Command) error {
		path, err := packagedEnvFile()
		if err != nil {
			return err
		}
		if os.Geteuid() == 0 && path != "" && cmd.String(envFileFlag) == path {
			return fmt.Errorf("become the account %s: %w", packagedAccount, become(packagedAccount))
		}
		return action(ctx, cmd)
	}
}

// become runs this program again, in this process, as an account. It returns only if that fails. To
// change the account alone is not enough: package os/user remembers who the process was.
func become(name string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	account, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, uidErr := strconv.Atoi(account.Uid)
	gid, gidErr := strconv.Atoi(account.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return err
	}
	texts, err := account.GroupIds()
	if err != nil {
		return err
	}
	groups := make([]int, len(texts))
	for i, text := range texts {
		if groups[i], err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	err = errors.Join(syscall.Setgroups(groups), syscall.Setgid(gid), syscall.Setuid(uid))
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, environmentOf(account, os.Environ()))
}

// environmentOf returns root's environment without what is about root: the homes, the directory for
// temporary files, and PGUSER and the like, from which the driver takes what a URL does not say.
func environmentOf(account *user.User, environ []string) []string {
	environ = slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case "HOME", "USER", "LOGNAME", "XDG_DATA_HOME", "TMPDIR":
			return true
		default:
			return strings.HasPrefix(name, "PG")
		}
	})
	return append(environ, "HOME="+account.HomeDir, "USER="+account.Username, "LOGNAME="+account.Username)
}

// explainUnreadable says who may read the package's file of settings. command is what was typed.
func explainUnreadable(err error, path, command string) error {
	packaged, findErr := packagedEnvFile()
	if !errors.Is(err, fs.ErrPermission) || path == "" || path != packaged {
		return errors.Join(err, findErr)
	}
	return fmt.Errorf("%w: the service's account %s must be able to read this file (chgrp %[2]s, chmod 640); "+
		"from another account, type: sudo -u %[2]s %[3]s", err, packagedAccount, command)
}
