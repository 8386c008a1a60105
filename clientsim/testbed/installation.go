package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// installation is an installed PostgreSQL, with a directory for its files.
type installation struct {
	programs string          // directory of initdb, pg_basebackup and pg_rewind
	owner    *syscall.Stat_t // account of its processes
	home     string
	password string // password of the superuser
}

// StandbyPrograms returns the directory of an installed PostgreSQL that has the programs for a
// standby.
func StandbyPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", fmt.Errorf("PostgreSQL: %w", err)
	}
	for _, dir := range slices.Concat(filepath.SplitList(os.Getenv("PATH")), found) {
		missing := slices.ContainsFunc([]string{"initdb", "postgres", "pg_basebackup", "pg_rewind"},
			func(program string) bool {
				_, err := os.Stat(filepath.Join(dir, program))
				return err != nil
			})
		if filepath.IsAbs(dir) && !missing {
			return filepath.EvalSymlinks(dir)
		}
	}
	return "", errors.New("needs an installed PostgreSQL with pg_basebackup and pg_rewind")
}

// install finds the installed PostgreSQL, and makes the directory.
func install(name string) (i *installation, err error) {
	defer Catch(&err)
	i = &installation{password: fmt.Sprintf("%x", mlsclient.RandomBytes(16))}
	i.programs = Must(StandbyPrograms())
	i.owner = Must(databaseAccount())
	i.home = Must(os.MkdirTemp("", "clientsim-"+name+"-"))
	if err := os.Chown(i.home, int(i.owner.Uid), int(i.owner.Gid)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(i.home))
	}
	return i, nil
}

// databaseAccount returns the account that PostgreSQL runs as. It is this process's own account, or
// postgres if this process is root, because PostgreSQL does not run as root.
func databaseAccount() (_ *syscall.Stat_t, err error) {
	defer Catch(&err)
	if os.Geteuid() != 0 {
		return &syscall.Stat_t{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}, nil
	}
	u, err := user.Lookup("postgres")
	Check(errs.Wrap(err, "PostgreSQL does not run as root"))
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	Check(errs.Wrap(err, "uid of postgres"))
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	Check(errs.Wrap(err, "gid of postgres"))
	return &syscall.Stat_t{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func freePort() (_ int, err error) {
	defer Catch(&err)
	l := Must(net.Listen("tcp", "127.0.0.1:0"))
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// run runs a program in the directory as PostgreSQL's account.
func (i *installation) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{program}, args...)...)
	cmd.Dir = i.home
	cmd.Env = []string{"PATH=" + i.programs + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "PGPASSWORD=" + i.password}
	runAs(cmd, i.owner)
	// The program would be stopped when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, output)
	}
	return nil
}

// write writes a file that only PostgreSQL reads.
func (i *installation) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Chown(path, int(i.owner.Uid), int(i.owner.Gid))
}

// initdb makes a cluster.
func (i *installation) initdb(ctx context.Context, dir, superuser string) error {
	secret := filepath.Join(i.home, "password")
	if err := i.write(secret, i.password+"\n"); err != nil {
		return err
	}
	return i.run(ctx, "initdb", "--no-sync", "--data-checksums", "--encoding=UTF8", "--locale=C", "--username="+superuser,
		"--pgdata="+dir, "--pwfile="+secret, "--auth-host=scram-sha-256", "--auth-local=peer")
}

// postmaster returns the server of a cluster, at a port.
func (i *installation) postmaster(dir string, port int, sockets, url string) *Postmaster {
	m := &Postmaster{
		args: []string{filepath.Join(i.programs, "postgres"), "-D", dir}, owner: i.owner, url: url, log: newLastLines(40),
	}
	m.Set("port", strconv.Itoa(port))
	m.Set("listen_addresses", "127.0.0.1")
	m.Set("unix_socket_directories", sockets)
	return m
}
