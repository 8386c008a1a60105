package api

import (
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/archive"
	"mlsd/features/requests"
)

const (
	// exportsAtOnce is how many exports read at one time. One caller has at most one of them.
	exportsAtOnce = 2
	// exportTime is how long reading one page takes at most. The last statement may exceed it.
	exportTime = 2 * time.Second
	// A caller pays one unit for each unitExport of reading.
	unitExport = 10 * time.Millisecond
)

// ExportMyData: blue.catbird.mls.exportMyData.
func (h *handlers) ExportMyData(c *call, p *mlsapi.ExportMyDataParams) error {
	var from archive.Position
	if p.Cursor != nil {
		var err error
		if from, err = archive.ParsePosition(*p.Cursor); err != nil {
			return err
		}
	}
	var reading place
	if err := reading.acquire(c, h.places.exports); err != nil {
		return err
	}
	defer reading.release()
	begun := time.Now()
	defer func() { c.spend(int(time.Since(begun) / unitExport)) }()

	if err := requests.RecordExport(c.ctx, h.DB, c.caller, mlsapi.NSIDExportMyData); err != nil {
		return err
	}
	answer, out := c.list(), &mlsapi.ExportMyDataOutput{}
	err := archive.Snapshot(c.ctx, c.db, func(tx pgx.Tx) error {
		end, more, err := archive.Reader{DID: c.caller, Rows: int(p.Limit), Time: exportTime}.Read(c.ctx, tx, from,
			func(row archive.Row) bool {
				return answer.add(&mlsapi.ExportedRow{Type: row.Type, Data: row.Data}, shownBytes+len(row.Data)+len(row.Data)/16)
			})
		if more {
			out.Cursor = lexcodec.Pointer(end.String())
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.replyList(answer, out)
}
