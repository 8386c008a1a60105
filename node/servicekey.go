package node

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/network"
	"mlsd/migrations"
)

// serviceKey is this node's copy of the keys with which the service signs for other services. The
// database has the public half of the newest one, so that nodes do not sign with different keys.
type serviceKey struct {
	db   *pgxpool.Pool
	keys *network.Keys
}

// serviceKeyInterval is how often a node looks for a newer key.
const serviceKeyInterval = 5 * time.Second

// file returns the keys for package network.
func (k *serviceKey) file() *network.Keys {
	if k == nil {
		return nil
	}
	return k.keys
}

// RunOnce reads the file and the record. If the file has a newer key than the record, or if the
// service has no key yet, it changes the record under a lock.
func (k *serviceKey) RunOnce(ctx context.Context) error {
	if k == nil {
		return nil
	}
	recorded, err := migrations.ReadServiceKey(ctx, k.db)
	if err != nil {
		return err
	}
	if recorded != "" {
		newest, err := k.keys.Sync(recorded)
		if err != nil || newest == recorded {
			return err
		}
	}
	return pgx.BeginFunc(ctx, k.db, func(tx pgx.Tx) error {
		recorded, err := migrations.LockServiceKey(ctx, tx)
		if err != nil {
			return err
		}
		newest, err := k.keys.Sync(recorded)
		if err != nil || newest == recorded {
			return err
		}
		return migrations.SetServiceKey(ctx, tx, newest)
	})
}

// RotateServiceKey makes another key in this machine's file, and records it.
func (c Config) RotateServiceKey(ctx context.Context, conn *pgx.Conn, leaked bool) (keys []network.Key, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := migrations.LockServiceKey(ctx, tx); err != nil {
			return err
		}
		if keys, err = network.Rotate(c.ServiceKeyFile, leaked); err != nil {
			return err
		}
		return migrations.SetServiceKey(ctx, tx, keys[0].Multikey)
	})
	return keys, err
}
