package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/localpg"
	"mlsd/internal/pgtest"
	"mlsd/internal/testdir"
	"mlsd/node"
)

// typed returns the commands that docs/RESTORE.md tells to type under a name. /backups becomes
// directory, and the moment becomes to.
func typed(t *testing.T, name, directory string, to time.Time) string {
	t.Helper()
	block := regexp.MustCompile(`<!-- typed: ` + name +
		` -->\n\n((?: {4}.*\n)+)`).FindStringSubmatch(pages(t)["docs/RESTORE.md"])
	if block == nil {
		t.Fatalf("docs/RESTORE.md has no commands %q", name)
	}
	script := strings.TrimPrefix(strings.ReplaceAll("\n"+block[1], "\n    ", "\n"), "\n")
	script = strings.ReplaceAll(script, "/backups", directory)
	return strings.NewReplacer(
		"2026-11-22T10:15:00Z", to.UTC().Format(time.RFC3339Nano),
		"2026-11-22 10:15:00+00", to.UTC().Format("2006-01-02 15:04:05.999999+00"),
	).Replace(script)
}

// shell runs a script with more variables, as the given account or as this process's, and returns
// what it prints.
func shell(t *testing.T, script string, account *syscall.Credential, environ ...string) string {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = "/"
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "MLSD_") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	input, open, err := os.Pipe() // the end of its input ends mlsd
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = input
	out, err := cmd.CombinedOutput()
	if err := errors.Join(err, input.Close(), open.Close()); err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	return string(out)
}

// mlsdOnPath puts this program as mlsd into a directory, and returns a PATH with it.
func mlsdOnPath(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", childEnv, exe)
	if err := os.WriteFile(filepath.Join(dir, "mlsd"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return "PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

// chat is a convo of two users, and what was written to it.
type chat struct {
	w          *world
	alice, bob *user
	c          *convo
	sent       []request
}

func (w *world) chat() *chat {
	w.t.Helper()
	alice, bob := w.user(), w.user()
	return &chat{w: w, alice: alice, bob: bob, c: alice.create(bob)}
}

// send writes n more messages, and returns a moment after them and before the next ones.
func (c *chat) send(n int) time.Time {
	c.w.t.Helper()
	for range n {
		r := c.alice.procedure(mlsapi.NSIDSendMessage, c.alice.message(c.c, fmt.Sprint("message ", len(c.sent))))
		r.must().ok()
		c.sent = append(c.sent, r)
	}
	return time.Now()
}

// wantFirst expects the convo to have the first n messages and no other. The server keeps its
// promises: a retry of a message that is there is a replay, and one of a message that was lost is
// written.
func (c *chat) wantFirst(n int) {
	c.w.t.Helper()
	if got := len(c.bob.log(c.c)); got != n {
		c.w.t.Errorf("%d messages, want %d", got, n)
	}
	if a := c.sent[n-1].must(); !a.replayed() {
		c.w.t.Errorf("message %d was restored, and its retry is no replay: %s", n, a.ok())
	}
	if n < len(c.sent) {
		if a := c.sent[n].must(); a.replayed() {
			c.w.t.Errorf("message %d was lost, and its retry is a replay: %s", n+1, a.ok())
		}
	}
	c.w.wantSound()
}

// lastCursor returns the cursor of the newest message's event.
func (c *chat) lastCursor() (cursor string) {
	c.w.t.Helper()
	newest, stream := regexp.MustCompile(fmt.Sprintf(`"seq":%d\b`, len(c.sent))), c.bob.stream("cursor", "0")
	for line := ""; !newest.MatchString(line); {
		var err error
		if line, err = stream.ReadString('\n'); err != nil {
			c.w.t.Fatalf("a stream ended: %v", err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			cursor = strings.TrimSpace(id)
		}
	}
	return cursor
}

// wantOutdated gives others the places of lost events, and expects the subscriber with the cursor of
// one of them to learn of its loss.
func (c *chat) wantOutdated(lost string) {
	c.w.t.Helper()
	c.send(9)
	awaitLine(c.w.t, c.bob.stream("cursor", lost), "OutdatedCursor")
}

// on starts a server of the world.
func (w *world) on(args ...string) *server {
	w.t.Helper()
	s := boot(w.t, nil, w.flags(args...)...)
	w.use(s.admin, s.public)
	return s
}

// The commands of docs/RESTORE.md back up a private PostgreSQL while messages are written, and
// restore it to a moment after that.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	w, path := newWorld(t), mlsdOnPath(t)
	dir, old := testdir.For(t), pgtest.DataDir(t)
	archive := filepath.Join(dir, "wal")
	s := w.on("--data-dir", old, "--wal-archive", archive, "--rate-did", "1e6/1000000")
	c := w.chat()
	c.send(5)
	copied := make(chan string, 1)
	go func() {
		copied <- shell(t, typed(t, "backup", dir, time.Time{}), nil, path, "MLSD_DATA_DIR="+old)
	}()
	for len(copied) == 0 {
		c.send(1)
	}
	if out := <-copied; !strings.Contains(out, "ended at") {
		t.Errorf("backup prints %q", out)
	}
	to := c.send(3)
	kept := len(c.sent)
	c.send(4)
	s.stop()

	restored := filepath.Join(dir, "restored")
	environ := []string{path, "MLSD_WAL_ARCHIVE=" + archive, "MLSD_DATA_DIR=" + restored}
	if out := shell(t, typed(t, "restore", dir, to), nil, environ...); !strings.Contains(out,
		"the last transaction in it was committed at ") {
		t.Errorf("restore prints %q", out)
	}
	w.on("--data-dir", restored, "--wal-archive", archive)
	c.wantFirst(kept)
	launch(t, environ[1:], "restore", filepath.Join(dir, "monday")).fails("is in use")
	launch(t, []string{"MLSD_DATA_DIR=" + old}, "restore", filepath.Join(dir, "monday")).fails(localpg.ErrNotEmpty.Error())
}

// What is for the private PostgreSQL is refused with another one, before anything is started.
func TestBackupOfAnother(t *testing.T) {
	t.Parallel()
	another := []string{"MLSD_DATABASE_URL=postgres://a.invalid/b"}
	launch(t, append(another, "MLSD_WAL_ARCHIVE=/a")).fails("MLSD_WAL_ARCHIVE", node.ErrNotPrivate.Error())
	launch(t, another, "backup", "/a").fails("backup", node.ErrNotPrivate.Error())
	launch(t, another, "restore", "/a").fails("restore", node.ErrNotPrivate.Error())
	launch(t, nil, "backup").fails("name a directory")
	launch(t, nil, "restore", "--to", "monday", "/a").fails("monday")
}

// The commands for another PostgreSQL: a dump, and a new database from it. A27: on any server, and in
// place of the one that was dumped, the node notices it without a command: a subscriber that has lost
// events learns it, and sessions end.
func TestDumpAndRestore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		same   bool // the PostgreSQL
		script func(undump string) string
		into   string
	}{
		"another PostgreSQL": {false, func(undump string) string { return undump }, "mlsd_restored"},
		"the same PostgreSQL": {true, func(undump string) string {
			_, rest, _ := strings.Cut(undump, "\n") // the role is there
			return rest
		}, "mlsd_restored"},
		"the same database": {true, func(undump string) string {
			_, restore, _ := strings.Cut(undump, "pg_restore ")
			return "psql --command='DROP SCHEMA public CASCADE; CREATE SCHEMA public' mlsd\npg_restore " +
				strings.ReplaceAll(restore, "mlsd_restored", "mlsd")
		}, "mlsd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := newCluster(t)
			data := target.start()
			database := pgtest.URL(t)
			if tc.same {
				target.shell(data, `createdb --template=template0 --encoding=UTF8 --locale=C mlsd`)
				database = target.url("mlsd")
			}
			w := newWorld(t)
			s := w.on("--database-url", database)
			c := w.chat()
			session := c.alice.session().Session
			c.send(5)
			shell(t, typed(t, "dump", target.dir, time.Time{}), nil, "MLSD_DATABASE_URL="+database)
			c.send(3)
			lost := c.lastCursor()
			s.stop()
			target.shell(data, tc.script(typed(t, "undump", target.dir, time.Time{})))
			s = w.on("--database-url", target.url(tc.into), "--rate-did", "1e6/1000000")
			w.refusedWithin(s, session, time.Minute)
			c.wantFirst(5)
			c.wantOutdated(lost)
		})
	}
}

// The commands for another PostgreSQL: a base backup, an archive, and a restore to a moment.
func TestBaseBackupAndRestore(t *testing.T) {
	t.Parallel()
	p := newCluster(t)
	data := p.start()
	p.shell(data, `mkdir "`+p.dir+`/wal"; createdb mlsd`)
	p.shell(data, typed(t, "archive", p.dir, time.Time{}))
	w := newWorld(t)
	s := w.on("--database-url", p.url("mlsd"))
	c := w.chat()
	c.send(2)
	p.shell(data, typed(t, "base", p.dir, time.Time{}))
	to := c.send(3)
	c.send(4)
	lost := c.lastCursor()
	s.stop()
	p.shell(data, `pg_ctl stop --mode=fast`)

	restored := filepath.Join(p.dir, "restored")
	p.shell(restored, typed(t, "pitr", p.dir, to))
	p.shell(restored, `until test "$(psql --no-align --tuples-only --command='SELECT pg_is_in_recovery()' mlsd)" = f; `+
		`do sleep 0.05; done`)
	w.on("--database-url", p.url("mlsd"))
	c.wantFirst(5)
	c.wantOutdated(lost)
}

// A27: a disk that was replaced by an older copy is what no database can know. With the command of
// the page subscribers learn it.
func TestDiskSnapshot(t *testing.T) {
	t.Parallel()
	p := newCluster(t)
	data := p.start()
	p.shell(data, `createdb mlsd`)
	w := newWorld(t)
	s := w.on("--database-url", p.url("mlsd"))
	c := w.chat()
	c.send(2)
	s.stop()
	p.shell(data, `pg_ctl stop --mode=fast; cp -a "$PGDATA" "$PGDATA.old"; pg_ctl start --wait --log="$PGDATA/log"`)
	s = w.on("--database-url", p.url("mlsd"))
	c.send(3)
	lost := c.lastCursor()
	s.stop()
	p.shell(data, `pg_ctl stop --mode=fast; rm -r "$PGDATA"; mv "$PGDATA.old" "$PGDATA"
		pg_ctl start --wait --log="$PGDATA/log"`)
	if s := launch(t, []string{"MLSD_DATABASE_URL=" + p.url("mlsd")}, "restored"); s.wait() != nil {
		t.Fatalf("restored: %q", s.stderr)
	}
	w.on("--database-url", p.url("mlsd"))
	c.wantFirst(2)
	c.wantOutdated(lost)
}

// cluster is a PostgreSQL that the operator runs, with PostgreSQL's own programs.
type cluster struct {
	t        *testing.T
	bin, dir string
	account  *syscall.Credential // nil: this process's
}

// newCluster returns a cluster that is not made yet. Its directory belongs to its account.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	p := &cluster{t: t, bin: postgresBin(t), dir: filepath.Join(testdir.For(t), "pg"), account: postgresAccount(t)}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if p.account != nil {
		if err := os.Chown(p.dir, int(p.account.Uid), int(p.account.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// shell runs a script that works on the data in a directory. A server that it starts there ends with
// the test.
func (p *cluster) shell(data, script string) {
	p.t.Helper()
	environ := []string{"PATH=" + p.bin + string(os.PathListSeparator) + os.Getenv("PATH"), "PGDATA=" + data,
		"PGHOST=" + p.dir, "PGUSER=mlsd"}
	p.t.Cleanup(func() {
		shell(p.t, `if test -e "$PGDATA/postmaster.pid"; then pg_ctl stop --mode=immediate; fi`, p.account, environ...)
	})
	shell(p.t, script, p.account, environ...)
}

// start makes the cluster and starts its server. It returns the directory with the data.
func (p *cluster) start() (data string) {
	p.t.Helper()
	data = filepath.Join(p.dir, "data")
	p.shell(data, `initdb --username=mlsd --auth=trust --locale=C --encoding=UTF8 --no-sync
		printf "listen_addresses = ''\nunix_socket_directories = '%s'\nfsync = off\n" "$PGHOST" >> "$PGDATA/postgresql.conf"
		pg_ctl start --wait --log="$PGDATA/log"`)
	return data
}

func (p *cluster) url(database string) string {
	return "postgres://mlsd@/" + database + "?host=" + url.QueryEscape(p.dir)
}

// postgresBin returns the directory of PostgreSQL's programs.
func postgresBin(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("pg_config", "--bindir").Output()
	bin := strings.TrimSpace(string(out))
	for _, program := range []string{"initdb", "pg_ctl", "pg_basebackup", "pg_dump", "pg_restore", "psql", "createdb"} {
		if _, missing := os.Stat(filepath.Join(bin, program)); err != nil || missing != nil {
			t.Skip("SKIPPED: " + program + " is not installed")
		}
	}
	return bin
}

// postgresAccount is an account that may run PostgreSQL; nil is this process's.
func postgresAccount(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := osuser.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		gid, failed := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Skip("SKIPPED: there is no account to run PostgreSQL as")
	return nil
}
