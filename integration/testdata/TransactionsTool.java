import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.internals.Exit;
import org.apache.kafka.tools.TransactionsCommand;

/** Runs the lines of stdin as command lines of kafka-transactions.sh, all in this process: each is printed, then its output, then its exit code. */
final class TransactionsTool {
    private static final class Exited extends Error {
        final int code;

        Exited(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] bootstrap) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setErr(out);
        Exit.setExitProcedure((code, message) -> {
            throw new Exited(code);
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            out.println("> " + line);
            int code = 0;
            try {
                TransactionsCommand.main(("--bootstrap-server " + bootstrap[0] + " " + line).split(" "));
            } catch (Exited e) {
                code = e.code;
            }
            out.println("= " + code);
        }
    }
}
