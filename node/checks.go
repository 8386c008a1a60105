package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"

	"mlsd/api"
	"mlsd/features/push"
	"mlsd/internal/errs"
	"mlsd/operator"
	"mlsd/people/accounts"
)

// ErrNotPrivate refuses a command that works only with the private PostgreSQL.
var ErrNotPrivate = errors.New("this is for the private PostgreSQL, and MLSD_DATABASE_URL names another; " +
	"docs/RESTORE.md has the commands for that one")

// Check fails if settings cannot be used, or need other settings that are missing, as far as this
// shows without the database and the network. It returns who may use the admin listener.
func (c Config) Check(log *slog.Logger) (*operator.Access, error) {
	access, err := operator.NewAccess(c.AdminListen, c.Admin.Hosts, c.Admin.Tokens, log)
	return access, errors.Join(
		c.checkServiceDID(), c.checkPublicURL(), c.checkArchive(), c.checkStandby(), c.checkAdmitFile(log),
		c.checkAPNs(), c.checkVAPID(), err)
}

// Doubts returns what the operator should change, as far as this shows without the database and the
// network. Settings can be used in spite of it.
func (c Config) Doubts() (doubts []string) {
	if c.KeptUnasked {
		doubts = append(doubts, "messages are kept for ever; set MLSD_MESSAGE_RETENTION (a public service: 2160h), or to 0 "+
			"if that is meant")
	}
	return doubts
}

// checkServiceDID fails if other machines can reach the service, but its DID is the default one. On
// every machine, the default DID names that machine itself.
func (c Config) checkServiceDID() error {
	addr, err := net.ResolveTCPAddr("tcp", c.Listen)
	switch {
	case err != nil:
		return fmt.Errorf("--listen (MLSD_LISTEN) is %q: %w", c.Listen, err)
	case c.ServiceDID == "" && !addr.IP.IsLoopback():
		return fmt.Errorf("--service-did (MLSD_SERVICE_DID) must be set, because --listen (MLSD_LISTEN) is %q, which "+
			"other machines can reach: "+
			"the default did:web:localhost is good on this one only; for https://mls.example.com it is did:web:mls.example.com",
			c.Listen)
	}
	return nil
}

// checkPublicURL fails unless the URL of the service is known. Tickets for WebSockets name it.
func (c Config) checkPublicURL() error {
	if c.PublicURL == "" && c.ServiceDID != "" && api.PublicURL(c.ServiceDID) == "" {
		return fmt.Errorf("--public-url (MLSD_PUBLIC_URL) must be set: %s does not say where clients reach the service, "+
			"as a did:web does", c.ServiceDID)
	}
	return nil
}

// checkArchive fails if a WAL archive is set for a PostgreSQL that the operator runs.
func (c Config) checkArchive() error {
	if c.WALArchive != "" && c.DatabaseURL != "" {
		return fmt.Errorf("--wal-archive (MLSD_WAL_ARCHIVE): %w", ErrNotPrivate)
	}
	return nil
}

// checkStandby fails if a standby is set for the private PostgreSQL, which has none.
func (c Config) checkStandby() error {
	if c.ReadDatabaseURL != "" && c.DatabaseURL == "" {
		return errors.New("--read-database-url (MLSD_READ_DATABASE_URL) must not be set without MLSD_DATABASE_URL: it is " +
			"a standby of that PostgreSQL")
	}
	return nil
}

// checkAdmitFile fails if the list of accounts cannot be read.
func (c Config) checkAdmitFile(log *slog.Logger) error {
	if c.AdmitFile == "" {
		return nil
	}
	_, err := accounts.NewAllowlist(c.AdmitFile, log)
	return errs.Wrap(err, "--admit (MLSD_ADMIT)")
}

// checkAPNs fails if the key for Apple's push service cannot be used.
func (c Config) checkAPNs() error {
	if c.APNs == (push.APNsKey{}) {
		return nil
	}
	if _, err := push.NewAPNs(c.APNs, c.APNsHost, nil); err != nil {
		return fmt.Errorf("--apns-key-file, --apns-key-id, --apns-team-id (MLSD_APNS_KEY_FILE, MLSD_APNS_KEY_ID, "+
			"MLSD_APNS_TEAM_ID): %w", err)
	}
	return nil
}

// checkVAPID fails if the key for push services cannot be used.
func (c Config) checkVAPID() error {
	_, err := vapidKey(c.VAPIDKeyFile)
	return errs.Wrap(err, "--vapid-key-file (MLSD_VAPID_KEY_FILE)")
}

// Listen opens the listener of a setting.
func Listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	why := err.Error()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = "another program listens there: stop it, or choose another address, such as 127.0.0.1:18080"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "this machine has no such address; 0.0.0.0 stands for all that it has"
	case errors.Is(err, syscall.EACCES):
		why = "this account may not use the port: choose one from 1024 up"
	}
	return nil, fmt.Errorf("--%s (%s) is %q: %s", flag, variableOf(flag), address, why)
}

// checkPorts fails if a listener could not be opened. It runs before the database is started. The
// listeners themselves open once requests can be answered: until then clients see a closed port,
// and go to another node.
func (c Config) checkPorts() error {
	var errs []error
	for flag, address := range map[string]string{listenFlag: c.Listen, adminListenFlag: c.AdminListen} {
		l, err := Listen(flag, address)
		if err == nil {
			err = l.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
