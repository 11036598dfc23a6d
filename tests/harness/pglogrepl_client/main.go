// What programs that embed pglogrepl do, so that what they get from one server can be compared with
// what they get from another: identify, make temporary slots with a snapshot and without, stream
// pgoutput, end the stream, go on with the connection.
//
//	pglogrepl_client CONNINFO PUBLICATION
//
// It says "ready" when the slots are made, and then reads an LSN from standard input: it streams up
// to there. It prints what it gets, one thing a line, without times and without what is the server's
// own.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const patience = 60 * time.Second

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, conninfo, publication string) error {
	conn, err := pgconn.Connect(ctx, conninfo)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	system, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return err
	}
	fmt.Println("system", system.SystemID, system.Timeline, system.DBName)
	for _, action := range []string{"EXPORT_SNAPSHOT", "NOEXPORT_SNAPSHOT"} {
		slot := "go_" + strings.ToLower(action)
		made, err := pglogrepl.CreateReplicationSlot(ctx, conn, slot, "pgoutput",
			pglogrepl.CreateReplicationSlotOptions{Temporary: true, SnapshotAction: action})
		if err != nil {
			return err
		}
		fmt.Println("slot", made.SlotName, made.OutputPlugin, "snapshot:", made.SnapshotName != "")
	}
	var refused *pgconn.PgError
	err = pglogrepl.DropReplicationSlot(ctx, conn, "nobodys", pglogrepl.DropReplicationSlotOptions{})
	if !errors.As(err, &refused) {
		return fmt.Errorf("a slot that is not there was dropped: %w", err)
	}
	fmt.Println("refused", refused.Code, refused.Message)
	// In PostgreSQL an error is the end of temporary slots.
	slot := "go_stream"
	_, err = pglogrepl.CreateReplicationSlot(ctx, conn, slot, "pgoutput",
		pglogrepl.CreateReplicationSlotOptions{Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT"})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	until, err := pglogrepl.ParseLSN(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	arguments := []string{"proto_version '1'", "publication_names '" + publication + "'", "messages 'true'"}
	err = pglogrepl.StartReplication(ctx, conn, slot, 0,
		pglogrepl.StartReplicationOptions{PluginArgs: arguments})
	if err != nil {
		return err
	}
	if err := stream(ctx, conn, until); err != nil {
		return err
	}
	if _, err := pglogrepl.SendStandbyCopyDone(ctx, conn); err != nil {
		return err
	}
	// The connection can be gone on with.
	if _, err := pglogrepl.IdentifySystem(ctx, conn); err != nil {
		return err
	}
	return pglogrepl.DropReplicationSlot(ctx, conn, slot, pglogrepl.DropReplicationSlotOptions{})
}

// stream prints messages until the server says that it has sent everything before the LSN.
func stream(ctx context.Context, conn *pgconn.PgConn, until pglogrepl.LSN) error {
	var written pglogrepl.LSN
	for {
		raw, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		if failure, ok := raw.(*pgproto3.ErrorResponse); ok {
			return pgconn.ErrorResponseToPgError(failure)
		}
		data, ok := raw.(*pgproto3.CopyData)
		if !ok {
			return fmt.Errorf("unexpected message %T", raw)
		}
		switch data.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data.Data[1:])
			if err != nil {
				return err
			}
			if keepalive.ServerWALEnd >= until {
				return nil
			}
			err = pglogrepl.SendStandbyStatusUpdate(ctx, conn,
				pglogrepl.StandbyStatusUpdate{WALWritePosition: written + 1, ReplyRequested: false})
			if err != nil {
				return err
			}
		case pglogrepl.XLogDataByteID:
			found, err := pglogrepl.ParseXLogData(data.Data[1:])
			if err != nil {
				return err
			}
			message, err := pglogrepl.Parse(found.WALData)
			if err != nil {
				return err
			}
			fmt.Printf("%s %s %s %x\n", found.WALStart, found.ServerWALEnd, message.Type(), found.WALData)
			if found.WALStart > written {
				written = found.WALStart
			}
		}
	}
}
