package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the operating system's account that the server runs as.
type account struct {
	name     string
	uid, gid uint32
	cred     *syscall.Credential // nil: the account of this process
	unnamed  bool                // the user database has no line for uid
}

// Uids of which root takes an unused one if the system has no account for the server. No standard
// gives this range to anybody: it is between those of systemd, and small enough for containers that
// have 65,536 uids.
const (
	firstOwnUID = 60600
	lastOwnUID  = 60699
)

// chooseAccount returns the account to run the server as. It is this process's own account, unless
// that is root: PostgreSQL refuses to run as root. Root runs the server as the owner of the
// cluster, so that a new account does not change the choice. If there is no cluster, it takes the
// account mlsd or postgres. If neither exists, it takes a uid that nobody else has. It does not
// take the account nobody: other programs that run as nobody could read the cluster and its socket.
func chooseAccount(clusterDir string, exists bool) (*account, error) {
	var owner *syscall.Stat_t
	if exists {
		info, err := os.Stat(clusterDir)
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		owner, _ = info.Sys().(*syscall.Stat_t)
	}
	uid := os.Geteuid()
	switch {
	case uid != 0:
		if owner != nil && int(owner.Uid) != uid {
			return nil, fmt.Errorf("cluster %s belongs to uid %d, this process runs as uid %d", clusterDir, owner.Uid, uid)
		}
		return currentAccount(uid)
	case owner != nil && owner.Uid == 0:
		return nil, fmt.Errorf("cluster %s belongs to root, and PostgreSQL does not run as root: give it to another account (chown -R)", clusterDir)
	case owner != nil:
		return accountOf(owner.Uid, owner.Gid)
	}
	for _, name := range []string{"mlsd", "postgres"} {
		a, err := lookupAccount(func() (*user.User, error) { return user.Lookup(name) })
		var unknown user.UnknownUserError
		switch {
		case errors.As(err, &unknown):
			continue
		case err != nil:
			return nil, err
		case a.uid != 0:
			return a, nil
		}
	}
	return ownAccount()
}

// ownAccount returns a uid and gid that have no name, so that no other program runs as it.
func ownAccount() (*account, error) {
	for id := firstOwnUID; id <= lastOwnUID; id++ {
		var noUser user.UnknownUserIdError
		var noGroup user.UnknownGroupIdError
		_, userErr := user.LookupId(strconv.Itoa(id))
		_, groupErr := user.LookupGroupId(strconv.Itoa(id))
		if errors.As(userErr, &noUser) && errors.As(groupErr, &noGroup) {
			return unnamedAccount(uint32(id), uint32(id)), nil
		}
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, there is no account mlsd or postgres to run it as, and all uids from %d to %d "+
		"are taken: make an account (useradd --system mlsd)", firstOwnUID, lastOwnUID)
}

// accountOf returns the account of the owner of a cluster, which possibly has no name.
func accountOf(uid, gid uint32) (*account, error) {
	a, err := lookupAccount(func() (*user.User, error) { return user.LookupId(strconv.Itoa(int(uid))) })
	var unknown user.UnknownUserIdError
	if errors.As(err, &unknown) {
		return unnamedAccount(uid, gid), nil
	}
	return a, err
}

func unnamedAccount(uid, gid uint32) *account {
	return &account{
		name: fmt.Sprintf("uid %d", uid), uid: uid, gid: gid, unnamed: true,
		cred: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{}},
	}
}

// currentAccount returns the account of this process. It must be in the user database, because
// initdb and the server look up their own name.
func currentAccount(uid int) (*account, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return nil, fmt.Errorf("uid %d has no account (no line in /etc/passwd), without which PostgreSQL cannot make a cluster: "+
			"add one, run as another user, or set a database URL: %w", uid, err)
	}
	return &account{name: u.Username, uid: uint32(uid), gid: uint32(os.Getegid())}, nil
}

// lookupAccount returns another account to run the server as. The list of supplementary groups is
// empty: the server does not get those of this process.
func lookupAccount(lookup func() (*user.User, error)) (*account, error) {
	u, err := lookup()
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: uid of %s: %w", u.Username, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: gid of %s: %w", u.Username, err)
	}
	a := &account{name: u.Username, uid: uint32(uid), gid: uint32(gid)}
	a.cred = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: []uint32{}}
	return a, nil
}

// command returns a command of the server's installation that runs as the account in dir. The
// command has its own process group. So a ^C in a terminal reaches only this process, which stops
// the server in order. It has its own environment: the caller's PGDATA, PGPORT or PGOPTIONS would
// change what it does. Its messages are in English, because this package parses them.
func (a *account) command(ctx context.Context, path, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + filepath.Dir(path) + ":/usr/bin:/bin", "LC_ALL=C", "LANG=C", "TZ=UTC", "PWD=" + dir}
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	dieWithParent(cmd.SysProcAttr)
	return cmd
}

// own makes the account the owner of a directory, with mode 0700.
func (a *account) own(dir string) error {
	if a.cred != nil {
		if err := os.Chown(dir, int(a.uid), int(a.gid)); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// ownAll makes the account the owner of a directory and all in it.
func (a *account) ownAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(a.uid), int(a.gid))
	})
}

// checkAccess checks that the account can work below dir, by running a command there. Permission
// bits are not enough for that, because of ACLs and SELinux. If the account has no access, the
// error names the first directory on the path that it may not enter.
func (a *account) checkAccess(ctx context.Context, bin binaries, dir string) error {
	if a.cred == nil {
		return nil
	}
	if !errors.Is(a.enter(ctx, bin, dir), fs.ErrPermission) {
		return nil // the next steps report any other error, with more detail
	}
	closed := dir
	for p := dir; p != filepath.Dir(p); p = filepath.Dir(p) {
		if errors.Is(a.enter(ctx, bin, p), fs.ErrPermission) {
			closed = p
		}
	}
	return fmt.Errorf("PostgreSQL does not run as root but as %q, which may not enter %s: "+
		"allow it (chmod o+x), or use another data directory, such as /var/lib/mlsd", a.name, closed)
}

// enter runs a harmless command as the account with dir as its working directory.
func (a *account) enter(ctx context.Context, bin binaries, dir string) error {
	return runChild(a.command(ctx, bin.postgres(), dir, "--version"))
}
