package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Patroni is three PostgreSQL, each with a Patroni and an etcd, as on three machines: each has a
// network namespace and a disk of its own. Patroni decides who is the primary. Everything is
// configured by the files in deploy/patroni.
type Patroni struct {
	*installation        // its password is the password of all roles
	config        string // folder of patroni.yml and etcd.env
	machines      []*machine
	silent        string // name of the machine that is killed or frozen, or ""
}

// machine is one of the three machines.
type machine struct {
	name, address string
	disk          *SmallDisk // disk of the database; etcd has another disk
	log           *lastLines
}

// Addresses of the files in deploy/patroni. hubAddress is the address of the servers and clients.
const (
	hubAddress     = "10.0.0.1"
	machineAddress = "10.0.0.1%d"
	patroniLimit   = 3 * time.Minute // limit of a failover, and of the return of a machine
	askLimit       = 2 * time.Second // limit of one question to one PostgreSQL
)

// PatroniPrograms returns an error if a program is missing, or if this process's network is not its
// own.
func PatroniPrograms() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root")
	}
	for _, program := range []string{"patroni", "patronictl", "etcd", "pgbackrest", "ip", "iptables", "runuser"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("needs %s", program)
		}
	}
	_, err := StandbyPrograms()
	return err
}

// WithPatroni runs play on two servers of ours that use a Patroni. Their URL names all three
// PostgreSQL. The world's own server runs on, and is not used.
func (w *World) WithPatroni(ctx context.Context, play func(*Cluster, *Patroni)) {
	p := &Patroni{config: w.Patroni, installation: Must(install("patroni"))}
	err := Attempt(func() {
		Check(p.create(ctx))
		var hosts []string
		for _, m := range p.machines {
			hosts = append(hosts, m.address+":5432")
		}
		url := fmt.Sprintf("postgres://mlsd:%s@%s/mlsd?sslmode=disable&target_session_attrs=read-write", p.password,
			strings.Join(hosts, ","))
		o := ClusterOptions{Nodes: 2, Settings: Must(Unlimited(ctx, w.Server.Binary()))}
		w.withNodes(ctx, url, o, &Cluster{}, func(f *Cluster) { play(f, p) })
	})
	if err != nil {
		for _, m := range p.machines {
			w.Note("machine %s: %s", m.name, m.log)
		}
	}
	Check(errors.Join(err, p.close()))
}

// create makes the machines. When the machines have a primary, it makes the database.
func (p *Patroni) create(ctx context.Context) (err error) {
	defer Catch(&err)
	Check(os.Chmod(p.home, 0o755))
	Check(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600))
	for i, name := range []string{"a", "b", "c"} {
		m := &machine{name: name, address: fmt.Sprintf(machineAddress, i+1), log: newLastLines(100)}
		Check(errs.Wrap(p.addMachine(ctx, m), "machine %s", name))
		p.machines = append(p.machines, m)
	}
	for _, m := range p.machines {
		Check(p.start(m))
	}
	Must(p.AwaitWhole(ctx))
	primary := Must(p.Primary(ctx, ""))
	Check(Exec(ctx, p.superuser(primary), `CREATE ROLE mlsd LOGIN PASSWORD '`+p.password+`'`,
		`CREATE DATABASE mlsd OWNER mlsd TEMPLATE template0 ENCODING 'UTF8'`))
	// The driver does not go on to the next host if one says that it has no such database.
	for _, m := range p.machines {
		Check(p.awaitDatabase(ctx, m.name))
	}
	return nil
}

// awaitDatabase waits until a machine has the database.
func (p *Patroni) awaitDatabase(ctx context.Context, name string) error {
	return xrpc.Until(ctx, patroniLimit, func() (exists bool, _ error) {
		// After an error, the question is asked again.
		_ = p.ask(ctx, name, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'mlsd')`, &exists)
		return exists, nil
	})
}

// addMachine makes a machine's network, disk and files.
func (p *Patroni) addMachine(ctx context.Context, m *machine) (err error) {
	defer Catch(&err)
	for _, command := range []string{
		"ip netns add @NAME@",
		"ip link add hub-@NAME@ type veth peer name eth0 netns @NAME@",
		"ip address add " + hubAddress + "/32 dev hub-@NAME@",
		"ip link set hub-@NAME@ up",
		"ip route add @ADDRESS@ dev hub-@NAME@",
		"ip -netns @NAME@ link set lo up",
		"ip -netns @NAME@ address add @ADDRESS@/32 dev eth0",
		"ip -netns @NAME@ link set eth0 up",
		"ip -netns @NAME@ route add " + hubAddress + " dev eth0",
		"ip -netns @NAME@ route add default via " + hubAddress,
	} {
		Check(runProgram(ctx, strings.Fields(p.fill(m, command))...))
	}
	for _, dir := range []string{p.path(m, "disk"), p.path(m, "etcd")} {
		Check(os.MkdirAll(dir, 0o700))
	}
	m.disk = Must(NewSmallDisk(p.path(m, "disk")))
	text := Must(os.ReadFile(filepath.Join(p.config, "patroni.yml")))
	Check(os.WriteFile(p.path(m, "patroni.yml"), []byte(p.fill(m, string(text))), 0o600))
	for _, name := range []string{"", "disk", "etcd", "patroni.yml"} {
		Check(os.Chown(p.path(m, name), int(p.owner.Uid), int(p.owner.Gid)))
	}
	return nil
}

func (p *Patroni) path(m *machine, name string) string { return filepath.Join(p.home, m.name, name) }

// fill puts a machine's values into a file or a command.
func (p *Patroni) fill(m *machine, text string) string {
	return strings.NewReplacer(
		"@NAME@", m.name, "@ADDRESS@", m.address, "@SECRET@", p.password,
		"/var/lib/postgresql/15/mlsd", p.path(m, "disk/mlsd"), "/var/lib/postgresql", p.path(m, ""),
		"/var/run/postgresql", p.path(m, ""), "/usr/lib/postgresql/15/bin", p.programs,
		"/var/lib/etcd/mlsd", p.path(m, "etcd"),
	).Replace(text)
}

// runProgram runs a program to its end.
func runProgram(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// start starts a machine's etcd and Patroni.
func (p *Patroni) start(m *machine) (err error) {
	defer Catch(&err)
	text := Must(os.ReadFile(filepath.Join(p.config, "etcd.env")))
	env := []string{"PATH=" + p.programs + ":/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}
	for line := range strings.Lines(p.fill(m, string(text))) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			env = append(env, line)
		}
	}
	for _, args := range [][]string{{"etcd"}, {"patroni", p.path(m, "patroni.yml")}} {
		inside := []string{"netns", "exec", m.name, "runuser", "-u", "postgres", "--"}
		cmd := exec.Command("ip", append(inside, args...)...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = env, p.path(m, ""), m.log, m.log, time.Second
		Must(startChild(args[0]+" of "+m.name, cmd, m.log, nil))
	}
	return nil
}

// Kill kills everything on a machine at once, as a loss of power does.
func (p *Patroni) Kill(ctx context.Context, name string) error {
	p.silent = name
	return xrpc.Until(ctx, stopLimit, func() (bool, error) {
		n, err := signalMachine(ctx, name, syscall.SIGKILL)
		return n == 0, err
	})
}

// Freeze stops everything on a machine where it is, until Thaw. Its kernel still accepts
// connections.
func (p *Patroni) Freeze(ctx context.Context, name string) error {
	p.silent = name
	return signalTwice(ctx, name, syscall.SIGSTOP)
}

// Thaw ends Freeze.
func (p *Patroni) Thaw(ctx context.Context, name string) error {
	p.silent = ""
	return signalTwice(ctx, name, syscall.SIGCONT)
}

// signalTwice signals all processes of a machine, and then the children that they started before
// the signal.
func signalTwice(ctx context.Context, name string, s syscall.Signal) error {
	_, err := signalMachine(ctx, name, s)
	if err == nil {
		_, err = signalMachine(ctx, name, s)
	}
	return err
}

// signalMachine signals all processes of a machine, and returns their number.
func signalMachine(ctx context.Context, name string, s syscall.Signal) (_ int, err error) {
	defer Catch(&err)
	out, err := exec.CommandContext(ctx, "ip", "netns", "pids", name).Output()
	Check(errs.Wrap(err, "processes of %s", name))
	pids := strings.Fields(string(out))
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		Check(errs.Wrap(errors.Join(err, Signal(pid, s)), "%s", name))
	}
	return len(pids), nil
}

// Restart starts a machine again after Kill.
func (p *Patroni) Restart(name string) error {
	p.silent = ""
	return p.start(p.machine(name))
}

// FillDisk makes the disk of a machine's database full, until FreeDisk.
func (p *Patroni) FillDisk(name string) error { return p.machine(name).disk.Fill() }

// FreeDisk ends FillDisk.
func (p *Patroni) FreeDisk(name string) error { return p.machine(name).disk.Free() }

// Cut silently drops all packets between a machine and others, until Mend. Servers and clients
// still reach all machines.
func (p *Patroni) Cut(ctx context.Context, name string, others ...string) error {
	var errs []error
	a := p.machine(name).address
	for _, other := range others {
		b := p.machine(other).address
		for _, way := range [][2]string{{a, b}, {b, a}} {
			errs = append(errs, runProgram(ctx, "iptables", "--append", "FORWARD", "--source", way[0], "--destination", way[1],
				"--jump", "DROP"))
		}
	}
	return errors.Join(errs...)
}

// Mend ends every Cut.
func (p *Patroni) Mend(ctx context.Context) error {
	return runProgram(ctx, "iptables", "--flush", "FORWARD")
}

// Switchover asks Patroni to make another machine the primary, as an operator does.
func (p *Patroni) Switchover(ctx context.Context, name, other string) error {
	return runProgram(ctx, "patronictl", "-c", p.path(p.machine(name), "patroni.yml"), "switchover", "mlsd",
		"--leader", name, "--candidate", other, "--force")
}

func (p *Patroni) machine(name string) *machine {
	return p.machines[slices.IndexFunc(p.machines, func(m *machine) bool { return m.name == name })]
}

// Others returns the names of the other machines.
func (p *Patroni) Others(name string) (others []string) {
	for _, m := range p.machines {
		if m.name != name {
			others = append(others, m.name)
		}
	}
	return others
}

// Primary waits for a primary that is not the given machine.
func (p *Patroni) Primary(ctx context.Context, not string) (name string, err error) {
	err = xrpc.UntilDone(ctx, patroniLimit, func() error {
		var last error
		for _, m := range p.machines {
			if m.name == not || m.name == p.silent {
				continue
			}
			standby := true
			if last = p.ask(ctx, m.name, `SELECT pg_is_in_recovery()`, &standby); !standby {
				name = m.name
				return nil
			}
		}
		return errors.Join(fmt.Errorf("no machine but %q is the primary", not), last)
	})
	return name, err
}

// Whole is a cluster in which nothing is missing.
type Whole struct{ Primary, Synchronous string }

// AwaitWhole waits until both standbys follow the primary, one of them synchronously.
func (p *Patroni) AwaitWhole(ctx context.Context) (whole Whole, err error) {
	err = xrpc.UntilDone(ctx, patroniLimit, func() error {
		var last error
		for _, m := range p.machines {
			var standbys int
			var synchronous string
			last = p.ask(ctx, m.name, `
				SELECT count(*), coalesce(max(application_name) FILTER (WHERE sync_state = 'sync'), '')
				FROM pg_stat_replication WHERE state = 'streaming' AND usename = 'replicator'
					AND application_name IN ('a', 'b', 'c')`, &standbys, &synchronous)
			if standbys == len(p.machines)-1 && synchronous != "" {
				whole = Whole{m.name, synchronous}
				return nil
			}
		}
		return errors.Join(errors.New("the cluster is not whole"), last)
	})
	return whole, err
}

// ask asks one machine's PostgreSQL as the superuser.
func (p *Patroni) ask(ctx context.Context, name, sql string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return errs.Wrap(Scan(ctx, p.superuser(name), sql, nil, into...), "%s", name)
}

// superuser is the URL of one machine's PostgreSQL for its superuser.
func (p *Patroni) superuser(name string) string {
	return fmt.Sprintf("postgres://postgres:%s@%s:5432/postgres?sslmode=disable", p.password, p.machine(name).address)
}

// close ends all machines and removes their files. The networks end with this process's network.
func (p *Patroni) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	var errs []error
	for _, m := range p.machines {
		errs = append(errs, p.Kill(ctx, m.name), m.disk.Close(), runProgram(ctx, "ip", "netns", "delete", m.name))
	}
	return errors.Join(append(errs, os.RemoveAll(p.home))...)
}
