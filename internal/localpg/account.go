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
	cred     *syscall.Credential // nil means the account of this process
	unnamed  bool                // the user database has no line for uid
}

// The range of uids from which root takes an unused uid, if the system has no account for the
// server. No standard assigns this range: it lies between the ranges of systemd, and within the
// 65,536 uids of a container.
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
		a, err := accountOf(uid, os.Getegid())
		if err == nil && a.unnamed { // initdb and the server look up their own name
			err = fmt.Errorf("uid %d has no account (no line in /etc/passwd), without which PostgreSQL cannot make a cluster: "+
				"add one, run as another user, or set a database URL", uid)
		}
		return a, err
	case owner != nil && owner.Uid == 0:
		return nil, fmt.Errorf("cluster %s belongs to root, and PostgreSQL does not run as root: "+
			"give it to another account (chown -R)", clusterDir)
	case owner != nil:
		return accountOf(int(owner.Uid), int(owner.Gid))
	}
	for _, name := range []string{"mlsd", "postgres"} {
		a, err := namedAccount(name)
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

// ownAccount returns an account whose uid and gid have no name, so that no other program runs as
// it.
func ownAccount() (*account, error) {
	for id := firstOwnUID; id <= lastOwnUID; id++ {
		var noUser user.UnknownUserIdError
		var noGroup user.UnknownGroupIdError
		_, userErr := user.LookupId(strconv.Itoa(id))
		_, groupErr := user.LookupGroupId(strconv.Itoa(id))
		if errors.As(userErr, &noUser) && errors.As(groupErr, &noGroup) {
			return accountOf(id, id)
		}
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, there is no account mlsd or postgres to run it as, "+
		"and all uids from %d to %d are taken: make an account (useradd --system mlsd)", firstOwnUID, lastOwnUID)
}

// accountOf returns the account with a uid. The account may have no name. If it is not the account
// of this process, the server gets none of this process's supplementary groups.
func accountOf(uid, gid int) (*account, error) {
	a := &account{uid: uint32(uid), gid: uint32(gid)}
	if uid != os.Geteuid() {
		a.cred = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: []uint32{}}
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	var unknown user.UnknownUserIdError
	switch {
	case errors.As(err, &unknown):
		a.name, a.unnamed = fmt.Sprintf("uid %d", uid), true
	case err != nil:
		return nil, fmt.Errorf("account for PostgreSQL: %w", err)
	default:
		a.name = u.Username
	}
	return a, nil
}

func namedAccount(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: %w", err)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: %s: %w", name, err)
	}
	return accountOf(uid, gid)
}

// command returns a command of the server's installation, which runs in dir as the account. The
// command has its own process group. So a ^C in a terminal reaches only this process, which stops
// the server in order. The command has its own environment, because PGDATA, PGPORT or PGOPTIONS of
// the caller would change what it does. Its messages are in English, because this package parses
// them.
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

// ownAll makes the account the owner of a directory and of everything in it.
func (a *account) ownAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(a.uid), int(a.gid))
	})
}

// checkAccess checks that the account can work below dir, by running a command there. Permission
// bits do not tell this, because of ACLs and SELinux. If the account has no access, the error names
// the first directory on the path that the account may not enter.
func (a *account) checkAccess(ctx context.Context, bin binaries, dir string) error {
	closed := ""
	for p := dir; a.cred != nil && p != closed; p = filepath.Dir(p) {
		if err := runChild(a.command(ctx, bin.postgres(), p, "--version")); !errors.Is(err, fs.ErrPermission) {
			break // the next steps report any other error, with more detail
		}
		closed = p
	}
	if closed == "" {
		return nil
	}
	return fmt.Errorf("PostgreSQL does not run as root but as %q, which may not enter %s: "+
		"allow it (chmod o+x), or use another data directory, such as /var/lib/mlsd", a.name, closed)
}
