/* What the commands of the program `talweg` are made of: a command is one file beside this one and one row in
 * main.c. */
#ifndef TWI_CLI_CLI_H
#define TWI_CLI_CLI_H

#include <talweg/talweg.h>

/* Exit statuses of every command. */
enum { TWI_CLI_DONE = 0, TWI_CLI_FAILED = 1, TWI_CLI_REFUSED = 2 /* the command line is wrong */ };

typedef struct twi_cli_command {
    const char *name;
    const char *summary; /* a line of `talweg --help` */
    const char *usage;   /* its own --help: begins with "usage: " and ends with a newline */
    /* The exit status. argv[0] is "talweg NAME", so that getopt speaks of it; what is on stdout need not be flushed. */
    int (*run)(int argc, char **argv);
} twi_cli_command;

extern const twi_cli_command twi_cli_doctor, twi_cli_bench, twi_cli_plan;

/* Answers a command line that is wrong: says why where `problem` is not NULL (getopt has said it otherwise), and the
 * usage. */
int twi_cli_refuse(const twi_cli_command *command, const char *problem, const char *argument);

/* ---- texts.c ---- */

/* A whole number, least >= 0; false: it is none, or outside. */
bool twi_cli_read_whole(const char *text, int64_t least, int64_t most, int64_t *out);
/* By tw_precision_name. */
bool twi_cli_read_precision(const char *text, tw_precision *out);
/* What follows the noun that was counted: "1 run", "2 runs". */
const char *twi_cli_plural(int64_t count);
/* A string, in its quotes. */
void twi_cli_print_json(const char *text);

#endif
